"""What it catches: a batch size other than the one that the model's graph fixes; or a job without a batch size, if the
inputs of the graph fix different ones.

Why: ONNX Runtime refuses every batch with "Got invalid dimensions for input".

Example:

    batch: {size: 32}     # the graph's input is [8, 3, 224, 224]

How to fix: use the graph's batch size, or export the model with a dynamic one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import as_key
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="fixed-batch-mismatch", summary="Batch size is not the model's")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        size = job.batching.size
        if size is None:
            continue
        targets = {binding.value.name: binding.target for binding in job.bindings}
        targets |= {one.value.name: one.target for one in job.values if one.axis is not None}
        for name, target in targets.items():
            shape = target.shape
            if shape and isinstance(shape[0], int) and shape[0] != size:
                detail = (
                    f'Job "{job.spec.name}" runs {size} rows at a time, and input "{name}" is {target}. Set batch: '
                    f"{{size: {shape[0]}}}. {_otherwise(job, name)}"
                )
                at = (*job.spec.at, "batch", "size")
                yield Finding(at=at, detail=detail, job=job.spec.name, model=job.spec.model)


def _otherwise(job: "ResolvedJob", name: str) -> str:
    """Return what else helps than another batch size."""
    if job.pipeline is not None and job.pipeline.spec.preset is not None:
        return "Rows run together only if its component says row_independence: false."
    return (
        f"If that dimension does not count rows, declare inputs: {{{as_key(name)}: {{row_axis: none}}}} of the model, "
        "or use size: none if no input has rows."
    )
