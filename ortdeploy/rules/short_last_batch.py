"""What it catches: a model with a fixed batch larger than 1 whose last batch may be short.

Why: ONNX Runtime refuses the short batch with "Got invalid dimensions for input", after all others have run.

Example: a graph with the input [8, 3, 224, 224] and 1000 rows.

How to fix: batch: {last: pad} repeats the last row and drops its results. batch: {last: drop} leaves the remaining rows
out.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="short-last-batch", summary="Last batch may be shorter than the model takes")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        size, rows = job.batching.fixed, job.input.rows
        if size is None or size == 1 or job.batching.last != "short" or (rows is not None and rows % size == 0):
            continue
        counted = f"{rows} rows leave {rows % size}" if rows is not None else "The number of rows is not known"
        detail = (
            f'{job.kind.capitalize()} "{job.spec.model}" takes batches of exactly {size}. {counted} for the last one. '
            "Set batch: {last: pad} or {last: drop}."
        )
        at = (*job.spec.at, "batch", "last")
        yield Finding(at=at, detail=detail, job=job.spec.name, model=job.spec.model)
