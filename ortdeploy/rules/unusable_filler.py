"""What it catches: a value under missing: that its column cannot be given: for a column that feeds no input, for files
whose format has no empty values, or of another kind than the model input takes.

Why: the filler would never be used, or each row that needs it would fail, and only those, perhaps weeks later.

Example: missing: {age: unknown} where the model's input takes float32.

How to fix: write a number for numbers (nan for floating ones) and text for text, under the name of a column of a CSV
or of JSON lines.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.facts.data import FORMATS_WITH_GAPS
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.types import FLOATING

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="unusable-filler", summary="Value for missing ones that the column cannot have")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for column, filler in job.spec.input.missing.items() if job.readable else ():
            problem = _problem(job, column, filler)
            if problem:
                at = (*job.spec.input.at, "missing", column)
                yield Finding(at=at, detail=problem, key=True, job=job.spec.name, model=job.spec.model)


def _problem(job: "ResolvedJob", column: str, filler: Any) -> str | None:
    if job.input.format not in FORMATS_WITH_GAPS:
        return f"Files in the format {job.input.format} have no empty values. Take missing: away."
    takers = [binding for binding in job.bindings if column in binding.columns]
    if not takers:
        fed = [name for binding in job.bindings for name in binding.columns]
        return f'No model input is fed from "{column}". {did_you_mean(column, fed)}'
    dtype = takers[0].source.dtype
    if filler is None or dtype is None or _fits(filler, dtype):
        return None
    return f'"{column}" feeds input "{takers[0].value.name}", which takes {dtype}, and {filler!r} is not of that type.'


def _fits(filler: Any, dtype: str) -> bool:
    if dtype == "string":
        return isinstance(filler, str)
    if dtype in FLOATING:
        return filler == "nan" or (isinstance(filler, int | float) and not isinstance(filler, bool))
    return isinstance(filler, bool) if dtype == "bool" else isinstance(filler, int) and not isinstance(filler, bool)
