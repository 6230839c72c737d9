"""The facts that a plan rests on, and which of them have moved."""

from collections.abc import Sequence
from pathlib import Path

from ortdeploy.deployment.resolved import Deployment
from ortdeploy.plan.steps import Fact
from ortdeploy.redaction import shown_path


def plan_facts(deployment: Deployment) -> tuple[Fact, ...]:
    """Return what a plan for this deployment rests on."""
    runtime = deployment.facts.runtime
    sessions = [session for model in deployment.models for session in model.sessions]
    asked = {provider.name for session in sessions for provider in session.chain}
    return (
        Fact(kind="manifest", name=Path(deployment.spec.path).name, value=deployment.spec.sha256),
        Fact(kind="ONNX Runtime version", name="onnxruntime", value=runtime.version),
        Fact(kind="providers", name="onnxruntime", value=", ".join(runtime.available_providers)),
        *(
            Fact(
                kind="device",
                name=f"{device.provider} {device.index}",
                value=f"{device.kind} {device.vendor} {device.name}",
            )
            for device in runtime.devices
            if device.provider in asked
        ),
        *(Fact(kind="model", name=m.spec.path, value=m.facts.sha256) for m in deployment.models),
        *(
            Fact(kind="adapter", name=adapter.path, value=deployment.facts.adapters[adapter.name].sha256)
            for adapter in deployment.spec.adapters
        ),
        *(Fact(kind="labels", name=path, value=file.sha256) for path, file in deployment.facts.labels.items()),
        *(Fact(kind="file", name=path, value=file.sha256) for path, file in deployment.facts.resources.items()),
        *(Fact(kind="folder", name=name, value=one.sha256) for name, one in deployment.facts.diffusion.items()),
        *(
            Fact(
                kind="inputs",
                name=f"job {job.spec.name}: {', '.join(map(shown_path, job.spec.input.paths))}",
                value=job.input.digest,
            )
            for job in deployment.jobs
        ),
    )


def moved_facts(planned: Sequence[Fact], now: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the planned facts that are no longer so."""
    present = {(fact.kind, fact.name): fact.value for fact in now}
    return tuple(fact for fact in planned if present.get((fact.kind, fact.name)) != fact.value)
