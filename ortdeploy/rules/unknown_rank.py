"""What it catches: values inside the graph with an unknown rank, for a provider that needs to know it.

Why: TensorRT refuses such a model ("has no shape specified. Please run shape inference on the onnx model first").
OpenVINO fails if such a value lies between its nodes and those of the CPU ("Model wasn't fully converted").

Example: providers: [TensorRT, CUDA, CPU] for a model with a custom operator, whose output shapes are unknown.

How to fix: run shape inference on the model and save it (onnxruntime.tools.symbolic_shape_infer), or write the shapes
into its value_info.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unknown-rank", summary="Provider needs shapes that the graph does not have", severity=Severity.WARNING)

_SHOWN = 3


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        unranked = model.facts.unranked
        for session in model.usable if unranked else ():
            for provider in (find_provider(one.name) for one in session.chain):
                if provider is not None and provider.needs_ranks:
                    more = ", …" if len(unranked) > _SHOWN else ""
                    detail = (
                        f"{provider.name} needs to know the ranks of all values, and {len(unranked)} of model "
                        f'"{model.spec.name}" have none: {", ".join(unranked[:_SHOWN])}{more}. Run shape inference on '
                        "it, and save it with the shapes."
                    )
                    yield Finding(at=(*session.spec.at, "providers"), detail=detail, model=model.spec.name)
