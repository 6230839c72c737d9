"""What it catches: a job, a step of a pipeline or an adapter that names a model which the manifest does not declare.

Why: there is nothing to run.

Example:

    models: {digits: {path: digits.onnx}}
    jobs: {read: {model: digit, …}}

How to fix: declare the model under models:, or correct the name.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.manifest.pipelines import walk
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="undefined-model", summary="Model is not declared")


def check(spec: "Spec") -> Iterator[Finding]:
    known = [model.name for model in spec.models]
    for job in spec.jobs:
        if job.pipeline is None and job.model not in known:
            advice = did_you_mean(job.model, known)
            detail = f'Job "{job.name}" names the model "{job.model}", which is not under models:. {advice}'
            yield Finding(at=(*job.at, "model"), detail=detail, job=job.name)
    for step in (step for pipeline in spec.pipelines for step in walk(pipeline.steps) if step.kind == "run"):
        if step.name not in known:
            detail = (
                f'The step runs the model "{step.name}", which is not under models:. {did_you_mean(step.name, known)}'
            )
            yield Finding(at=(*step.at, "run"), detail=detail)
    for adapter in spec.adapters:
        if adapter.model not in known:
            advice = did_you_mean(adapter.model, known)
            detail = f'Adapter "{adapter.name}" names the model "{adapter.model}", which is not under models:. {advice}'
            yield Finding(at=(*adapter.at, "model"), detail=detail)
