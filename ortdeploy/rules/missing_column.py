"""What it catches: a model input that no column of the data feeds, or a column or key that the data does not have.

Why: ONNX Runtime needs every input that has no default: "Required inputs are missing from input feed".

Example: a model with inputs a and b, and a CSV with the columns a and c.

How to fix: say which column feeds which input: input: {columns: {b: c}}. If the header of a CSV is one name such as
a;b, write delimiter: ";". If a table has the elements of y as y.0 and y.1, name them "y.*". A name that the header has
twice says of no column which one is meant.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.column_patterns import is_pattern, matching
from ortdeploy.deployment.delimiters import advice_on_delimiter
from ortdeploy.diagnostics import did_you_mean
from ortdeploy.manifest.spec import ALWAYS_COLUMNS
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.data import InputFacts
    from ortdeploy.tensors.types import Shape

RULE = Rule(id="missing-column", summary="No such column in the data")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if not job.readable or not job.input.columns:
            continue
        known = list(job.input.columns)
        at = job.spec.input.at
        for binding in job.bindings:
            if not binding.columns:
                several = "[COLUMN, …]" if _is_row_of_numbers(binding.target.shape) else "COLUMN"
                detail = (
                    f'Nothing feeds input "{binding.value.name}" ({binding.target}) of {job.kind} "{job.spec.model}". '
                    f"Say which column does: columns: {{{binding.value.name}: {several}}}. "
                    f"{_advice('', known, job.input)}"
                )
                yield Finding(at=(*at, "columns"), detail=detail, key=True, job=job.spec.name, model=job.spec.model)
            for name in binding.unknown:
                none = "no column that matches" if is_pattern(name, known) else "no column"
                detail = _unknown(name, known, job.input, none)
                yield Finding(at=(*at, "columns", binding.value.name), detail=detail, job=job.spec.name)
        chosen = job.spec.adapters.column
        if chosen is not None and chosen not in known and chosen not in ALWAYS_COLUMNS:
            detail = f'The data has no column "{chosen}", which chooses the adapters. {did_you_mean(chosen, known)}'
            yield Finding(at=(*job.spec.at, "adapter", "column"), detail=detail, job=job.spec.name)
        for index, name in enumerate(job.spec.input.key):
            if name not in known and name not in ALWAYS_COLUMNS:
                detail = _unknown(name, (*known, *ALWAYS_COLUMNS), job.input)
                yield Finding(at=(*at, "key", index), detail=detail, job=job.spec.name)


def _is_row_of_numbers(shape: "Shape | None") -> bool:
    """Whether rows of a shape, rows first, are of several numbers, which columns of a table may hold one by one."""
    return shape is not None and len(shape) == 2 and shape[1] != 1  # noqa: PLR2004  rows, numbers


def _unknown(name: str, known: "Sequence[str]", source: "InputFacts", none: str = "no column") -> str:
    if name in source.repeated:
        return f'The data has the column "{name}" twice, and nothing says which one is meant. Rename one of the two.'
    elements = f"{name}.*"
    if matching(elements, known):  # as tables have an output of several numbers a row
        return (
            f'The data has {none} "{name}", and its elements as columns of their own, {elements}. '
            f'Name all of them: "{elements}".'
        )
    return f'The data has {none} "{name}". {_advice(name, known, source)}'


def _advice(name: str, known: "Sequence[str]", source: "InputFacts") -> str:
    return advice_on_delimiter(source) or did_you_mean(name, known)
