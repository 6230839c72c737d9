"""What it catches: models whose weights alone take more than the GPU has, by gpu_memory_bytes of a device file.

Why: a provider that finds no room for the weights opens no session, or runs from the memory of the processor, many
times slower. On the machine itself, a plan opens the sessions and sees that; for another machine, nobody does. Only
weights are counted, once for each model: values of runs, kernels and the driver come on top, so what passes may still
not fit. Of a provider that compiles, which may keep them as int8, it is a quarter of the weights.

Example: providers: [CUDA, CPU] for a model with weights of 12 GiB, and a device file with machine:
{gpu_memory_bytes: 8589934592}.

How to fix: take a smaller model or one of float16, put one of several models on the CPU, or run the jobs one after the
other with apply --job NAME.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.providers.catalogue import NVIDIA, find_provider
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.units import format_size

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedProvider

RULE = Rule(id="over-gpu-memory", summary="Not enough memory of the GPU", certainty=Certainty.MACHINE)

_OF_GPUS = frozenset({NVIDIA, "AMD GPU", "DirectML", "WebGPU"})
_SMALLER = 4
"""How many times smaller a weight of float32 is as int8."""


def check(deployment: "Deployment") -> Iterator[Finding]:
    machine, taken = deployment.facts.machine, Counter[str]()
    if machine is None or machine.gpu_memory_bytes is None:
        return
    for model in {model.spec.name: model for job in deployment.jobs for model in job.models}.values():
        session = next(iter(model.usable), None)
        if session is None or model.spec.cpu_fallback == "allow":  # how much of it the GPU gets is not known
            continue
        gpu, provider = _gpu_of(session.chain[0]), find_provider(session.chain[0].name)
        if gpu is None or provider is None:
            continue
        taken[gpu] += model.facts.weights.size // (_SMALLER if provider.compiles else 1)
        if taken[gpu] > machine.gpu_memory_bytes:
            detail = (
                f'With model "{model.spec.name}", weights take {format_size(taken[gpu])} of a GPU or more, and it has '
                f"{format_size(machine.gpu_memory_bytes)}. Take a smaller model, put one on the CPU, or run the jobs "
                "one after the other with --job."
            )
            yield Finding(at=session.written[0].at, detail=detail, model=model.spec.name)


def _gpu_of(entry: "ResolvedProvider") -> str | None:
    """Return which GPU has the weights of a provider in its memory; None if none has."""
    provider, device = find_provider(entry.name), entry.device
    kind = device.kind if device is not None else str(entry.options.get("device_type", ""))
    if provider is None or not (provider.memory in _OF_GPUS or (provider.short == "OpenVINO" and kind[:3] == "GPU")):
        return None
    return str(device.index if device is not None else entry.options.get("device_id", 0))
