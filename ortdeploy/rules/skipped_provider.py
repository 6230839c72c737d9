"""What it catches: a provider that this onnxruntime does not offer, where the model says on_unavailable: next.

Why: the manifest allows it, and it still must not go unseen that a job runs on another provider than the first.

Example: providers: [CUDA, CPU] with on_unavailable: next, on a machine with the CPU wheel.

How to fix: nothing, when that is meant. Else install what carries the provider, or remove on_unavailable: next.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty, Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment import Deployment

RULE = Rule(
    id="skipped-provider",
    summary="Provider is left out",
    severity=Severity.WARNING,
    certainty=Certainty.MACHINE,
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        if model.spec.on_unavailable != "next" or not model.chain:
            continue
        chain = ", ".join(provider.name for provider in model.chain)
        for entry in model.unavailable:
            detail = (
                f'Model "{model.spec.name}" goes on without {entry.name}, which this onnxruntime build does not offer. '
                f"Its session gets {chain}."
            )
            yield Finding(at=entry.at, detail=detail, model=model.spec.name)
