"""What it catches: a batch whose input or output has 2,147,483,648 elements or more, on an NVIDIA GPU.

Why: kernels of the CUDA provider count elements with 32 bits. Beyond that, Transpose fails with "narrowing_error", and
Concat gives wrong results without a message (onnxruntime-gpu 1.31.1 on an H200).

Example: batch: {size: 4096} for rows of [3, 512, 512].

How to fix: make the batch smaller; the message names the largest that fits.
"""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob, ResolvedModel

RULE = Rule(id="oversized-tensor", summary="Batch has more elements than a GPU's kernels count")

_MEMORY = "NVIDIA GPU"
_MOST = 2**31 - 1


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if job.pipeline is not None or not _is_on_gpu(job.model):
            continue
        size = job.batching.run_size
        found = next(((name, row) for name, row in _elements_of_rows(job) if size * row > _MOST), None)
        if found is not None:
            name, row = found
            most = _MOST // row
            fix = f"Make the batch smaller: at most {most:,} rows fit." if most else "Run the model on the CPU."
            detail = (
                f'"{name}" of job "{job.spec.name}" has {size * row:,} elements in a batch of {size:,}. Kernels of the '
                f"CUDA provider count up to {_MOST:,}: beyond that they fail, or give wrong results without a "
                f"message. {fix}"
            )
            yield Finding(at=(*job.spec.at, "batch", "size"), detail=detail, job=job.spec.name, model=job.spec.model)


def _is_on_gpu(model: "ResolvedModel") -> bool:
    providers = (find_provider(one.name) for session in model.usable for one in session.chain)
    return any(provider is not None and provider.memory == _MEMORY for provider in providers)


def _elements_of_rows(job: "ResolvedJob") -> Iterator[tuple[str, int]]:
    """Yield each input and output with the elements of one row; a size that is not known counts as 1."""
    tensors = [*((one.value.name, one.final) for one in job.bindings), *job.outputs.items()]
    for name, tensor in tensors:
        yield name, prod(max(size, 1) for size in (tensor.shape or ())[1:] if isinstance(size, int))
