"""What it catches: a job that names a pipeline which the manifest does not declare, or both a model and a pipeline.

Why: there is nothing to run, or there are two things to run.

Example:

    pipelines: {read-page: {…}}
    jobs: {read: {pipeline: read-pages, …}}

How to fix: declare the pipeline under pipelines:, or correct the name. Keep only one of model and pipeline.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="undefined-pipeline", summary="Pipeline is not declared")


def check(spec: "Spec") -> Iterator[Finding]:
    known = [pipeline.name for pipeline in spec.pipelines]
    for job in spec.jobs:
        if job.pipeline is None:
            continue
        if job.pipeline not in known:
            advice = did_you_mean(job.pipeline, known)
            detail = f'Job "{job.name}" names the pipeline "{job.pipeline}", which is not under pipelines:. {advice}'
            yield Finding(at=(*job.at, "pipeline"), detail=detail, job=job.name)
        if job.has_pipeline_and_model:
            detail = f'Job "{job.name}" names a model and a pipeline. Keep one of the two.'
            yield Finding(at=(*job.at, "model"), detail=detail, key=True, job=job.name)
