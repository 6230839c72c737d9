"""What it catches: a model that a provider has compiled, in a chain without that provider.

Why: such a model holds EPContext nodes, and only the provider that wrote them can run them: "EPContext node generated
by 'OpenVINOExecutionProvider' is not compatible with any execution provider added to the session".

Example: models: {m: {path: m_ctx.onnx}} with a file that QNN compiled, and no providers.

How to fix: list the provider that compiled the model. Or deploy the original model with cache: true, which compiles it
on the device.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="compiled-elsewhere", summary="Model was compiled for another provider")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for session in model.usable if model.facts.compiled_by else ():
            names = {provider.name for provider in session.chain}
            missing = [name for name in model.facts.compiled_by if name not in names]
            if missing:
                detail = (
                    f"{model.spec.path} was compiled by {' and '.join(missing)}, which the chain of session "
                    f'"{session.spec.name}" does not have. List it, or deploy the model that it was made from.'
                )
                yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)
