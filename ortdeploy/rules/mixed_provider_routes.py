"""What it catches: a provider from a plugin package together with another built-in one than the CPU in one chain.

Why: ONNX Runtime takes plugin providers by device and built-in ones by name, and where both are given it drops the
plugin with a warning.

Example: providers: [QNN, CUDA, CPU] with onnxruntime-gpu and the plugin package onnxruntime-qnn.

How to fix: use two models entries with a chain each, or take both providers as plugins.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.providers.catalogue import CPU
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment import Deployment

RULE = Rule(
    id="mixed-provider-routes", summary="Plugin and built-in provider in one chain", certainty=Certainty.MACHINE
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        plugins = [provider.name for provider in model.chain if provider.device is not None]
        built_in = [p.name for p in model.chain if p.device is None and p.name != CPU]
        if plugins and built_in:
            detail = (
                f'Model "{model.spec.name}" asks for {", ".join(plugins)} from a plugin package and for the built-in '
                f"{', '.join(built_in)}. One session takes the one kind or the other. Give each a model of its own."
            )
            yield Finding(at=(*model.spec.at, "providers"), detail=detail, model=model.spec.name)
