"""Writes down the facts that a plan rests on."""

from collections.abc import Collection, Iterator
from pathlib import Path

from ortdeploy.deployment.resolved import Deployment, ResolvedJob
from ortdeploy.plan.steps import Fact
from ortdeploy.planning.make.arrived import fact_of_inputs

VERSION, PROVIDERS = "ONNX Runtime version", "providers"
OF_MACHINE = frozenset({VERSION, PROVIDERS, "device", "number of cores"})
"""Kinds of facts about a machine and its ONNX Runtime; the others are about files."""


def chosen_jobs(deployment: Deployment, only_jobs: Collection[str] | None) -> list[ResolvedJob]:
    """Return the jobs of a deployment that the plan is for; all of them if none are named."""
    return [job for job in deployment.jobs if only_jobs is None or job.spec.name in only_jobs]


def plan_facts(deployment: Deployment, only_jobs: Collection[str] | None) -> tuple[Fact, ...]:
    """Return the facts that a plan for some jobs of this deployment rests on."""
    runtime = deployment.facts.runtime
    sessions = [session for model in deployment.models for session in model.sessions]
    asked = {provider.name for session in sessions for provider in session.chain}
    return (
        Fact(kind="manifest", name=Path(deployment.spec.path).name, value=deployment.spec.sha256),
        Fact(kind=VERSION, name="onnxruntime", value=runtime.version),
        Fact(kind=PROVIDERS, name="onnxruntime", value=", ".join(runtime.available_providers)),
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
        *(Fact(kind="file", name=path, value=file.sha256) for path, file in deployment.facts.option_files.items()),
        *(Fact(kind="folder", name=name, value=one.sha256) for name, one in deployment.facts.diffusion.items()),
        *(
            fact_of_inputs(job.spec.name, job.spec.input.paths, job.input)
            for job in chosen_jobs(deployment, only_jobs)
            if job.upstream is None
        ),
        *_cores(deployment),
    )


def _cores(deployment: Deployment) -> Iterator[Fact]:
    """Yield the number of cores, if thread layouts that fit it are to be measured."""
    machine = deployment.facts.machine
    if machine is not None and any(model.spec.auto_threads for model in deployment.models):
        yield Fact(kind="number of cores", name="threads: auto", value=str(machine.usable_cores))
