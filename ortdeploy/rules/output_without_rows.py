"""What it catches: a written model output that has no dimension for rows.

Why: results are written row by row. A sum over the batch, or a constant, belongs to no row.

Example: an output [] or [10] of a model that gets batches of 32, or one that the manifest declares with row_axis: none.
If all outputs are declared so, no row has a result.

How to fix: leave the output out with output: {columns: […]}. If one of its axes counts rows, declare it, also if a
converter has fixed it to 1: outputs: {scores: {row_axis: 1}}. Or give each row a run of its own: batch: {size: 1}, or
{size: none} for a model without rows.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import as_key
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.facts.models import ValueFacts

RULE = Rule(id="output-without-rows", summary="Output has no dimension for rows")
_NOTHING_LEFT = (
    "All outputs of the model are declared with row_axis: none: none is by row, so nothing would be written. Say which "
    "axis counts rows for one of them, as in row_axis: 1, or let each row be a run of its own: batch: {size: none}."
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        outputs = job.model.facts.outputs
        if outputs and all(_is_whole(value, job) for value in outputs):
            spec = job.spec
            yield Finding(at=spec.output.at, detail=_NOTHING_LEFT, key=True, job=spec.name, model=spec.model)
        for value in outputs:
            detail = _detail(value, job) if value.name in job.needed else None
            if detail is not None:
                yield Finding(at=job.spec.output.at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)


def _is_whole(value: "ValueFacts", job: "ResolvedJob") -> bool:
    """Return whether an output is declared not to be by row."""
    return job.axes.of_output(value.name) is None and value.name in job.axes.declared


def _detail(value: "ValueFacts", job: "ResolvedJob") -> str | None:
    axis, shape = job.axes.of_output(value.name), value.tensor.shape
    if _is_whole(value, job):
        return (
            f'Output "{value.name}" is declared with row_axis: none: it is not by row, so it cannot be a column. '
            "Leave it out with columns:, or say which of its axes counts rows."
        )
    if not job.batching.size or shape is None:
        return None
    if axis is not None and axis >= len(shape):  # of a declared axis that is not there another rule speaks
        return None
    size = None if axis is None else shape[axis]
    if size == 1 and value.name in job.axes.declared:  # converters write 1 for any number; the first run tells
        return None
    if axis is None or (isinstance(size, int) and size != job.batching.size):
        return (
            f'Output "{value.name}" is {value.tensor}, for batches of {job.batching.size} rows. Leave it out with '
            f"columns:, say which axis counts rows, outputs: {{{as_key(value.name)}: {{row_axis: AXIS}}}}, or give "
            "each row a run of its own: batch: {size: 1}, or {size: none} for a model that has no dimension for rows."
        )
    return None
