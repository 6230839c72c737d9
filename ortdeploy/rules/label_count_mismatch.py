"""What it catches: labels that are more or fewer than the classes whose numbers they name.

Why: the index of a class is the number of a line. If a file has one more, such as a background at its start that the
model does not have, every name is that of another class, and nothing fails.

Example: a model with 1,000 scores and a file with 1,001 labels, behind an argmax, a top_k, or the nms of a detector.

How to fix: use the file that belongs to the model, with one line for each class, the first for index 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortdeploy.diagnostics import Severity
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.contracts import INDEX, ContractError, Types
from ortdeploy.tensors.types import TensorType

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.deployment.typed_steps import TypedStep
    from ortdeploy.manifest.document import Path

RULE = Rule(id="label-count-mismatch", summary="Labels are more or fewer than the classes", severity=Severity.WARNING)

_COUNTED = "classes"
"""The axis of an operation's inputs that its results of the unit INDEX are places on."""


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        classes: dict[str, int] = {}
        details = list(_of_steps(job.pipeline.types.steps, classes)) if job.pipeline and job.pipeline.types else []
        results = job.pipeline.spec.outputs if job.pipeline else {}
        details += _of_postprocess(job, {name: classes[value] for name, value in results.items() if value in classes})
        yield from (Finding(at=at, detail=detail, job=job.spec.name) for at, detail in details)


def _of_steps(steps: Sequence["TypedStep"], classes: dict[str, int]) -> Iterator[tuple["Path", str]]:
    """Yield what is wrong with labels in a pipeline, and note how many classes its values number."""
    for step in steps:
        spec = step.spec
        if spec.kind == "each":
            inside = dict(classes)
            yield from _of_steps(step.inner, inside)
            classes |= {collected: inside[name] for name, collected in spec.outputs if name in inside}
        elif spec.kind == "do" and spec.name == "labels":
            yield from _compared((*spec.at, "in"), step.options, classes.get(spec.wires.get("x", "")))
        elif spec.kind == "do":
            made = dict(spec.outputs)
            counts = numbered(spec.name, step.options, step.types)
            classes |= {made[place]: count for place, count in counts.items() if place in made}


def _of_postprocess(job: "ResolvedJob", classes: dict[str, int]) -> Iterator[tuple["Path", str]]:
    types = {**job.outputs, **job.results}
    for step in job.postprocess:
        read = step.options.get(step.name)
        if step.name == "labels":
            yield from _compared(step.at, step.options, classes.get(str(read)))
        elif step.name in OPERATIONS:
            count = numbered(step.name, step.options, {"x": types.get(str(read), TensorType())}).get("0")
            classes |= {str(step.options.get("as")): count} if count is not None else {}


def numbered(operation: str, options: Mapping[str, Any], types: Types) -> dict[str, int]:
    """Return how many classes the results of a step number, by their places."""
    contract = OPERATIONS[operation].contract
    try:
        count = contract.solve(contract.filled(options), types).size(_COUNTED)
    except ContractError:  # other rules say so
        count = None
    places = [str(place) for place, one in enumerate(contract.outputs) if INDEX in one.units]
    return dict.fromkeys(places, count) if count is not None else {}


def _compared(at: "Path", options: Mapping[str, Any], wanted: int | None) -> Iterator[tuple["Path", str]]:
    count, path = len(options.get("lines", ())), options.get("from")
    if count and wanted is not None and count != wanted:
        named = path if path is not None else f'Model "{options.get("model")}"'
        detail = (
            f"{named} has names for {count:,} classes, and there are {wanted:,}. Names would be missing "
            "or of other classes. Use those that belong to the model."
        )
        yield (*at, "from" if path is not None else "model"), detail
