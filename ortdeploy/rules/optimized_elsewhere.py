"""What it catches: a model file that ONNX Runtime has optimized for one kind of processor.

Why: at the highest optimization level, ONNX Runtime writes operators of the domain com.microsoft.nchwc. Only the CPU
provider on the same kind of processor has them. Behind another provider, all nodes stay on the CPU, or the session
fails.

Example: a file written with optimized_model_filepath and graph_optimization_level: all.

How to fix: deploy the original model, with cache: true for a fast start; or write it at the level extended.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="optimized-elsewhere", summary="Model was optimized for one machine", severity=Severity.WARNING)

_DOMAIN = "com.microsoft.nchwc"


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        count = sum(node.domain == _DOMAIN for node in model.facts.nodes)
        if count:
            detail = (
                f"{model.spec.path} has {count} nodes of {_DOMAIN}, which ONNX Runtime wrote for the processor that it "
                "ran on. Deploy the original model; cache: true keeps an optimized one for each machine."
            )
            yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)
