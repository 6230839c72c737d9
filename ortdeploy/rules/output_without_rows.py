"""What it catches: a written model output that has no dimension for rows.

Why: results are written row by row. A sum over the batch, or a constant, belongs to no row.

Example: an output [] or [10] of a model that gets batches of 32.

How to fix: leave it out with output: {columns: […]}, or use batch: {size: none} when each row is one run.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="output-without-rows", summary="Output has no dimension for rows")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if job.batch_size == 0:
            continue
        for value in job.model.facts.outputs:
            shape = value.tensor.shape
            if value.name not in job.needed or shape is None:
                continue
            if not shape or (isinstance(shape[0], int) and shape[0] != job.batch_size):
                detail = (
                    f'Output "{value.name}" is {value.tensor}, for batches of {job.batch_size} rows. '
                    "Leave it out with columns:, or set batch: {size: none} when each row is one run."
                )
                yield Finding(at=job.spec.output.at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)
