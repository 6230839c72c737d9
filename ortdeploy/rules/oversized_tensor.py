"""What it catches: a batch of which an input, an output or a value in between has 2,147,483,648 elements or more, on an
NVIDIA GPU.

Why: kernels of the CUDA provider count elements with 32 bits. Beyond that, Transpose fails with "narrowing_error", and
Concat gives wrong results without a message (onnxruntime-gpu 1.31.1 on an H200).

Example: batch: {size: 4096} for rows of [3, 512, 512]; attention of 16 heads over 1,024 tokens in batches of 128.

How to fix: make the batch smaller, or that of the step each which runs the model; the message names the largest that
fits.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import COUNTED
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.facts.preflight import LargestValue

RULE = Rule(id="oversized-tensor", summary="Batch has more elements than a GPU's kernels count")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for one in deployment.preflight.largest_values.get(job.spec.name, ()):
            if one.elements > COUNTED:
                at = (*job.spec.at, "batch", "size")
                yield Finding(at=at, detail=_detail(job, one), job=job.spec.name, model=one.model)


def _detail(job: "ResolvedJob", one: "LargestValue") -> str:
    size = job.batching.run_size
    most = size * COUNTED // one.elements
    whose = f'model "{one.model}" in job' if job.pipeline else "job"
    fix = f"Make the batch smaller: at most {most:,} rows fit." if most else "Run the model on the CPU."
    return (
        f'"{one.name}" of {whose} "{job.spec.name}" has {one.elements:,} elements in a batch of {size:,}. '
        f"Kernels of the CUDA provider count up to {COUNTED:,}: beyond that they fail, or give wrong results without a "
        f"message. {fix}"
    )
