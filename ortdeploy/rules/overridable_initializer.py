"""What it catches: a model whose inputs have defaults, such as LoRA matrices, behind OpenVINO's plugin package.

Why: its compiler drops such inputs, and then ONNX Runtime cannot bind the others: "Input names mismatch between
OpenVINO and ONNX. OpenVINO input has no ONNX binding" (onnxruntime-ep-openvino 1.8.1), when the session is opened.

Example: a base model made by olive generate-adapter, with providers: [OpenVINO, CPU].

How to fix: run it on the CPU provider, or export it with required LoRA inputs (Olive: optional_inputs: false).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="overridable-initializer", summary="Provider cannot compile inputs with defaults")

_OPENVINO = "OpenVINOExecutionProvider"


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        defaults = [value.name for value in model.facts.inputs if value.optional]
        for session in model.usable if defaults else ():
            if any(provider.name == _OPENVINO and provider.device is not None for provider in session.chain):
                others = f" and {len(defaults) - 1} more" if len(defaults) > 1 else ""
                detail = (
                    f'Session "{session.spec.name}" gives model "{model.spec.name}" to OpenVINO, which cannot compile '
                    f"inputs with defaults: {defaults[0]}{others}. Use providers: [CPU], or export it without defaults."
                )
                yield Finding(at=session.spec.at, detail=detail, model=model.spec.name)
