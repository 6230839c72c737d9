"""Looks at the first rows of a deployment's jobs."""

from contextlib import nullcontext
from functools import partial

from ortdeploy.deployment.resolved import Deployment, ResolvedJob
from ortdeploy.facts.preflight import FirstRows
from ortdeploy.planning.make.job import planned_job
from ortdeploy.planning.preflight.op_sessions import open_runners
from ortdeploy.planning.preflight.rows_of_job import dropped_below, look
from ortdeploy.process.native_output import put_aside
from ortdeploy.sources.catalogue import PRINTING


def look_at_rows(deployment: Deployment) -> dict[str, FirstRows]:
    """Return what the first rows of unfinished jobs are, by job; no rule may have found an error before.

    A job is left out if another job has yet to make its rows, or if they are on another machine.
    """
    folder = deployment.spec.folder
    return {
        job.spec.name: _look(job, folder)
        for job in deployment.jobs
        if job.has_work and not job.is_input_elsewhere and (job.upstream is None or job.input.files)
    }


def _look(job: ResolvedJob, folder: str) -> FirstRows:
    step = planned_job(job)
    least = dropped_below(job.pipeline.spec.steps) if job.pipeline else {}
    with put_aside() if step.input.format in PRINTING else nullcontext():  # the library of some formats prints
        return look(step, job.input.files, folder, job.input.rows, partial(open_runners, job, step), least)
