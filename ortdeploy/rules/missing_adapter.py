"""What it catches: a job that runs a model whose LoRA matrices have no defaults, without an adapter that has them.

Why: ONNX Runtime needs every input that has no default: "Required inputs (['lora_A', …]) are missing from input feed".
If a job has an adapter, rows without it get matrices of zeros.

Example: jobs: {read: {model: base, …}} for a model that Olive exported with optional_inputs: false.

How to fix: name an adapter that has all matrices. Or export the model with defaults (Olive: optional_inputs: true),
with which it also runs without an adapter.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="missing-adapter", summary="No adapter feeds LoRA inputs")

_SHOWN = 3


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in (job for job in deployment.jobs if job.pipeline is None and job.model.facts.problem is None):
        fed = {one.value.name for one in job.bindings} | {one.value.name for one in job.values}
        fed |= job.adapter_shapes.keys()
        lacking = sorted(one.name for one in job.model.facts.inputs if not one.optional and one.name not in fed)
        if lacking and all(facts.problem is None for facts in job.adapter_facts.values()):
            at = (*job.spec.at, "adapter" if job.spec.adapters.names else "model")
            detail = _detail(job, lacking, deployment)
            yield Finding(at=at, detail=detail, job=job.spec.name, model=job.model.spec.name)


def _detail(job: "ResolvedJob", lacking: list[str], deployment: "Deployment") -> str:
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    mine = [one.name for one in deployment.spec.adapters if one.model == job.spec.model]
    parameters = {name: {one.name for one in deployment.facts.adapters[name].parameters} for name in mine}
    full = [name for name in mine if parameters[name].issuperset(lacking)]
    advice = f"Name an adapter that has them: {', '.join(full)}." if full else "Declare an adapter that has them."
    return (
        f'No adapter of job "{job.spec.name}" has {", ".join(lacking[:_SHOWN])}{more} of model "{job.spec.model}", '
        f"which have no defaults in the graph. {advice} Or export the model with defaults for them (Olive: "
        "optional_inputs: true)."
    )
