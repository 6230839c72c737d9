"""What it catches: an adapter file that is missing, empty, or not an ONNX Runtime adapter.

Why: ONNX Runtime's messages for these cases do not name the file: "Invalid fd was supplied: -1", "The buffer does not
appear to be a valid lora parameter format".

Example: adapters: {french: {path: french.safetensors, model: translator}}

How to fix: provide the file, or convert it: ortdeploy adapter convert. The message says which of these it is.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unreadable-adapter", summary="Adapter file cannot be used")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for adapter in deployment.spec.adapters:
        problem = deployment.facts.adapters[adapter.name].problem
        if problem is not None:
            yield Finding(at=(*adapter.at, "path"), detail=problem.detail)
