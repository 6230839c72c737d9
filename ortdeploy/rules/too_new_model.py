"""What it catches: a model with an IR version or operator set that this ONNX Runtime does not load.

Why: exporters are often newer than the device. ONNX Runtime says "Unsupported model IR version", or "ONNX Runtime
only *guarantees* support for models stamped with official released onnx opset versions".

Example: a model exported today, and last year's ONNX Runtime on the device.

How to fix: export with the opset that the message names, or install a newer ONNX Runtime.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="too-new-model", summary="Model is newer than this ONNX Runtime", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    runtime = deployment.facts.runtime
    for model in deployment.models:
        facts = model.facts
        if runtime.max_ir_version is not None and facts.ir_version > runtime.max_ir_version:
            detail = (
                f'Model "{model.spec.name}" has IR version {facts.ir_version}; onnxruntime {runtime.version} loads up '
                f"to {runtime.max_ir_version}. Export it again with an older IR version, or update onnxruntime."
            )
            yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)
        for domain, version in facts.opsets.items():
            limit = runtime.max_opsets.get(domain)
            if limit is not None and version > limit:
                detail = (
                    f'Model "{model.spec.name}" uses opset {version} of {domain}; onnxruntime {runtime.version} knows '
                    f"up to {limit}. Export it with opset {limit}, or update onnxruntime."
                )
                yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)
