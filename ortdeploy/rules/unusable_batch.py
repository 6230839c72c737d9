"""What it catches: a number of rows that the graph cannot take although its inputs look free, because a batch size is
written into its body. Also a shorter last batch that does not fit, and rows of a size for which no batch fits.

Why: ONNX Runtime refuses each batch ("The input tensor cannot be reshaped to the requested shape"), or gives another
number of rows than it was fed.

Example: a Reshape to [8, 64] behind an input [batch, 1, 8, 8], and batch: {size: 32}.

How to fix: run the number of rows with which the graph was exported, pad the last batch, or export the model again
with a dynamic batch.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import as_key
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.facts.preflight import RefusedBatch

RULE = Rule(id="unusable-batch", summary="Graph cannot take this number of rows")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.preflight.refused_batches.get(job.spec.name)
        if found is not None:
            detail = (
                f'{job.kind.capitalize()} "{job.spec.model}" cannot take {found.rows} rows at a time: {found.problem}. '
                f"{_advice(job, found)}"
            )
            at = (*job.spec.at, "batch", "size")
            yield Finding(at=at, detail=detail, job=job.spec.name, model=job.spec.model)


def _advice(job: "ResolvedJob", found: "RefusedBatch") -> str:
    if found.output is not None:
        return (
            f"If another of its axes counts rows, say which: outputs: {{{as_key(found.output)}: {{row_axis: AXIS}}}} "
            "of the model. Else leave it out with columns:, or use batch: {size: none}."
        )
    if found.of_items:
        return (
            "Write the batch: of the step each with which the graph was exported, if no fewer items are ever left, or "
            "export the model with a dynamic batch."
        )
    if found.rows != job.batching.size and _whole_batch_fits(job, found):
        return "These are left for the last batch. Set batch: {last: pad} or {last: drop}."
    if found.fitting:
        return f"It takes {', '.join(map(str, found.fitting))}: set batch: {{size: {found.fitting[-1]}}}."
    return (
        "No other number fits: a size of the rows may be written into the graph too. Export it with dynamic sizes, or "
        "feed rows of the size that it was exported with."
    )


def _whole_batch_fits(job: "ResolvedJob", found: "RefusedBatch") -> bool:
    """Return whether the graph refuses only the last batch: whole ones were tried first, if there are any."""
    rows, size = job.input.rows, job.batching.size or 0
    return rows is None or rows >= size or size in found.fitting
