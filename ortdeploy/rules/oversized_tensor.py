"""What it catches: a batch whose input or output has 2,147,483,648 elements or more, on an NVIDIA GPU.

Why: kernels of the CUDA provider count elements with 32 bits. Beyond that, Transpose fails with "narrowing_error", and
Concat gives wrong results without a message (onnxruntime-gpu 1.31.1 on an H200).

Each model that a pipeline runs with whole batches is looked at too, but not those that an `each` runs for items.

Example: batch: {size: 4096} for rows of [3, 512, 512].

How to fix: make the batch smaller; the message names the largest that fits.
"""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.types import TensorType

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob, ResolvedModel

RULE = Rule(id="oversized-tensor", summary="Batch has more elements than a GPU's kernels count")

_MEMORY = "NVIDIA GPU"
_MOST = 2**31 - 1


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for model, tensors in _runs(job):
            size = job.batching.run_size
            rows = ((name, _elements_of_row(tensor)) for name, tensor in tensors)
            found = next(((name, row) for name, row in rows if size * row > _MOST), None)
            if found is not None and _is_on_gpu(model):
                detail = _detail(job, model, *found)
                at = (*job.spec.at, "batch", "size")
                yield Finding(at=at, detail=detail, job=job.spec.name, model=model.spec.name)


def _runs(job: "ResolvedJob") -> Iterator[tuple["ResolvedModel", list[tuple[str, TensorType]]]]:
    """Yield each model that runs with whole batches, with its inputs and outputs that have rows."""
    fed = {one.value.name: one.final for one in job.bindings}
    if job.pipeline is None:
        yield job.model, [*fed.items(), *job.outputs.items()]
        return
    models = {one.spec.name: one for one in job.pipeline.parts}
    for step in job.pipeline.types.steps if job.pipeline.types else ():
        if step.spec.kind == "run" and step.spec.name in models and not step.spec.by_row and step.fixed_rows is None:
            declared = [(port.name, port.tensor) for port in step.ports]
            given = [(port, fed.get(name, step.types[port])) for port, name in step.wires.items() if port in step.types]
            made = [(port, step.made[name]) for port, name in step.spec.outputs]
            yield models[step.spec.name], [*declared, *given, *made]


def _detail(job: "ResolvedJob", model: "ResolvedModel", name: str, row: int) -> str:
    size, most = job.batching.run_size, _MOST // row
    whose = f'model "{model.spec.name}" in job' if job.pipeline else "job"
    fix = f"Make the batch smaller: at most {most:,} rows fit." if most else "Run the model on the CPU."
    return (
        f'"{name}" of {whose} "{job.spec.name}" has {size * row:,} elements in a batch of {size:,}. Kernels of the '
        f"CUDA provider count up to {_MOST:,}: beyond that they fail, or give wrong results without a message. {fix}"
    )


def _is_on_gpu(model: "ResolvedModel") -> bool:
    providers = (find_provider(one.name) for session in model.usable for one in session.chain)
    return any(provider is not None and provider.memory == _MEMORY for provider in providers)


def _elements_of_row(tensor: TensorType) -> int:
    """Return the elements of one row; a size that is not known counts as 1."""
    return prod(max(size, 1) for size in (tensor.shape or ())[1:] if isinstance(size, int))
