"""What it catches: a provider chain that no model names, or an adapter or pipeline that no job names.

Why: an unused name is usually a typing error in the place where it should be used.

Example:

    providers: {edge: [CPU]}
    models: {digits: {path: digits.onnx}}

How to fix: use it, or remove it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unused-declaration", summary="Declared, but not used", severity=Severity.WARNING)


def check(spec: "Spec") -> Iterator[Finding]:
    chains = {session.chain_name for model in spec.models for session in model.sessions}
    for name in spec.chains:
        if name not in chains:
            detail = f'No model uses the provider chain "{name}". Use it, or remove it.'
            yield Finding(at=("providers", name), detail=detail, key=True)
    adapters = {name for use in spec.adapter_uses() for name in use.names}
    for adapter in spec.adapters:
        if adapter.name not in adapters and not adapter.checks:
            detail = f'No job uses the adapter "{adapter.name}". Use it, or remove it.'
            yield Finding(at=adapter.at, detail=detail, key=True)
    pipelines = {job.pipeline for job in spec.jobs}
    for pipeline in spec.pipelines:
        if spec.jobs and pipeline.name not in pipelines:
            detail = f'No job runs the pipeline "{pipeline.name}". Use it, or remove it.'
            yield Finding(at=pipeline.at, detail=detail, key=True)
