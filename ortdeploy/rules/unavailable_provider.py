"""What it catches: a provider that this onnxruntime does not offer, unless the model says on_unavailable: next and
something of the chain is left, or another of its sessions: can be opened.

Why: ONNX Runtime gives a Python warning and runs on the CPU.

Example: providers: [CUDA] with the CPU wheel.

How to fix: install the package that carries the provider, list CPU alone if the CPU is meant, or allow the next one
with on_unavailable: next.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment import Deployment

RULE = Rule(id="unavailable-provider", summary="Execution provider not available", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    runtime = deployment.facts.runtime
    offered = " and ".join(runtime.available_providers)
    for model in deployment.models:
        if model.usable:
            continue
        for entry in (entry for session in model.sessions for entry in session.unavailable):
            provider = find_provider(entry.name)
            name = provider.name if provider else entry.name
            known = provider is not None or entry.library is not None
            if not known or any(device.provider == name for device in runtime.devices):
                continue
            plugin = f" or, as a plugin, with {provider.plugin.package}" if provider and provider.plugin else ""
            source = f"{name} comes with {provider.package}{plugin};" if provider else ""
            detail = (
                f'Model "{model.spec.name}" asks for {name}, but this onnxruntime build offers only {offered}. '
                f"ONNX Runtime would warn and run on the CPU. {runtime.plugin_problems.get(name, source)} "
                "list CPU alone if the CPU is intended."
            )
            yield Finding(at=entry.at, detail=_sentence(detail), model=model.spec.name)


def _sentence(text: str) -> str:
    """Begin a sentence where the one before ended."""
    return text.replace(". list", ". List")
