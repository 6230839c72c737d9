"""What it catches: a batch size other than the one that the model's graph fixes; or a job without a batch size, if the
inputs of the graph fix different ones.

Why: ONNX Runtime refuses every batch with "Got invalid dimensions for input".

Example:

    batch: {size: 32}     # the graph's input is [8, 3, 224, 224]

How to fix: use the graph's batch size, or export the model with a dynamic one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="fixed-batch-mismatch", summary="Batch size is not the model's")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        size = job.batching.size
        if size is None:
            continue
        for binding in job.bindings:
            shape = binding.target.shape
            if shape and isinstance(shape[0], int) and shape[0] != size:
                detail = (
                    f'Job "{job.spec.name}" runs {size} rows at a time, and input "{binding.value.name}" is '
                    f"{binding.target}. Set batch: {{size: {shape[0]}}}, or size: none if that is not for rows."
                )
                at = (*job.spec.at, "batch", "size")
                yield Finding(at=at, detail=detail, job=job.spec.name, model=job.spec.model)
