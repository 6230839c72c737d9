"""What it catches: a provider that this onnxruntime does not offer, or that lacks a library which its options need, if
the model says on_unavailable: next or has another session that can be opened.

Why: the manifest allows it. But somebody should see that a job runs on another provider than the first.

Example: providers: [CUDA, CPU] with on_unavailable: next, on a machine with the CPU wheel.

How to fix: nothing, if that is what you want. Otherwise install the package that has the provider, or remove
on_unavailable: next.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.resolved import missing_library
from ortdeploy.diagnostics import Certainty, Severity
from ortdeploy.providers.catalogue import full_name
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.manifest.spec import ProviderSpec

RULE = Rule(
    id="skipped-provider",
    summary="Provider is left out",
    severity=Severity.WARNING,
    certainty=Certainty.MACHINE,
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for session in model.sessions if model.usable else ():
            for entry in session.unavailable:
                chain = ", ".join(provider.name for provider in session.chain)
                goes_on = f"Its session gets {chain}." if session.usable else "That session is left out."
                detail = f'Model "{model.spec.name}" runs without {entry.name}, {_reason(entry, deployment)}. {goes_on}'
                yield Finding(at=entry.at, detail=detail, model=model.spec.name)


def _reason(entry: "ProviderSpec", deployment: "Deployment") -> str:
    if full_name(entry.name) in deployment.facts.runtime.plugin_problems:
        return "which opens no session here"
    missing = missing_library(entry, deployment.facts.runtime)
    return "which this onnxruntime build does not offer" if missing is None else f"whose {missing[1]} is missing"
