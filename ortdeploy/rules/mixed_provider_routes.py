"""What it catches: a chain with a provider from a plugin package and a built-in provider other than the CPU.

Why: ONNX Runtime takes plugin providers by device and built-in ones by name. If both are given, it drops the plugin
with a warning.

Example: providers: [QNN, CUDA, CPU] with onnxruntime-gpu and the plugin package onnxruntime-qnn.

How to fix: give each provider a session of its own under sessions:, or install both as plugins.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.manifest.isolation import advise_isolation
from ortdeploy.providers.catalogue import CPU
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(
    id="mixed-provider-routes", summary="Plugin and built-in provider in one chain", certainty=Certainty.MACHINE
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for session in model.sessions:
            plugins = [provider.name for provider in session.chain if provider.device is not None]
            built_in = [p.name for p in session.chain if p.device is None and p.name != CPU]
            if plugins and built_in:
                detail = (
                    f'Model "{model.spec.name}" asks for {", ".join(plugins)} from a plugin package and for the '
                    f"built-in {', '.join(built_in)}. One session takes the one kind or the other. "
                    f"{advise_isolation(session.written)}"
                )
                yield Finding(at=(*session.spec.at, "providers"), detail=detail, model=model.spec.name)
