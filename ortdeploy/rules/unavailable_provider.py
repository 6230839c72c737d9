"""What it catches: a provider that this onnxruntime does not offer, or that opens no session on the device, as its file
says (opens:) of a provider with kernels, such as CUDA. It is allowed if the model says on_unavailable:
next and something of the chain is left, or if another of its sessions: can be opened.

Why: ONNX Runtime gives a Python warning and runs on the CPU.

Example: providers: [CUDA] with the CPU wheel.

How to fix: install the package that has the provider. If the CPU is meant, list CPU alone. Or allow the next provider
with on_unavailable: next.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.providers.catalogue import Provider, comes_with, find_provider, full_name
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unavailable-provider", summary="Execution provider not available", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    runtime = deployment.facts.runtime
    offered = " and ".join(name for name in runtime.available_providers if name not in runtime.plugin_problems)
    for model in deployment.models:
        if model.usable:
            continue
        for entry in (entry for session in model.sessions for entry in session.unavailable):
            provider, name = find_provider(entry.name), full_name(entry.name)
            known = provider is not None or entry.library is not None
            here = name in runtime.missing_libraries or any(device.provider == name for device in runtime.devices)
            if not known or (here and name not in runtime.plugin_problems):
                continue
            detail = (
                f'Model "{model.spec.name}" asks for {name}, but this onnxruntime build offers only {offered}. '
                f"ONNX Runtime would warn and run on the CPU. "
                f"{_advice(provider, runtime.plugin_problems.get(name))} CPU alone if the CPU is intended."
            )
            yield Finding(at=entry.at, detail=detail, model=model.spec.name)


def _advice(provider: Provider | None, problem: str | None) -> str:
    """Say what keeps the plugin library from use, or else what carries the provider, up to "list"."""
    if problem is not None:
        return f"{problem} List"
    if provider is None:
        return "List"
    return f"{provider.name} {comes_with(provider)}; list"
