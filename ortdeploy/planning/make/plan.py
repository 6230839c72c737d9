"""Writes down the plan of one deployment to which no rule objects."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ortdeploy.deployment.resolved import Deployment, ResolvedJob
from ortdeploy.deployment.threads import (
    threads_of_session,
)
from ortdeploy.plan.steps import FinishedJob, Plan, Step
from ortdeploy.planning.make.checks import make_checks
from ortdeploy.planning.make.facts import plan_facts
from ortdeploy.planning.make.job import planned_job
from ortdeploy.planning.make.pipeline import plan_pipeline
from ortdeploy.planning.make.sessions import _layouts, _load_adapter, _open_session


def make_plan(deployment: Deployment, only_job: str | None = None, *, retry: bool = False) -> Plan:
    """Write down the steps for a deployment to which no rule objects; to `retry` is to run failed rows alone."""
    spec = deployment.spec
    jobs = [job for job in deployment.jobs if only_job in {None, job.spec.name}]
    finished = tuple(_finished(job) for job in jobs if job.is_finished and not retry)
    to_run = [job for job in jobs if retry or not job.is_finished]
    return Plan(
        deployment=spec.name,
        manifest=spec.path,
        folder=spec.folder,
        profile=spec.profile,
        sets=spec.sets,
        overlays=tuple(str(Path(overlay).absolute()) for overlay in spec.overlays),
        roots=spec.roots,
        facts=plan_facts(deployment),
        gates=make_checks(deployment, {one.spec.name for job in to_run for one in job.models if one.spec.gate}),
        steps=tuple(_steps(to_run, deployment, retry=retry)),
        finished=finished,
    )


def _finished(job: ResolvedJob) -> FinishedJob:
    return FinishedJob(job=job.spec.name, output=job.spec.output.shown, rows=job.output.rows)


def _steps(jobs: Sequence[ResolvedJob], deployment: Deployment, *, retry: bool) -> Iterator[Step]:
    opened: set[str] = set()
    spec = deployment.spec
    for job in jobs:
        for model in (model for model in job.models if model.spec.name not in opened):
            limits = [one.spec.limits.threads for one in jobs if model in one.models]
            varying = any(one.has_varying_shapes for one in jobs if model in one.models)
            opening = _open_session(model, spec.folder, threads_of_session(model.spec, limits), varying=varying)
            shared_arena = (spec.shared_arena or {}) if model.spec.memory.shared_arena else None
            layouts = tuple(_layouts(model, deployment, jobs, varying=varying))
            yield replace(opening, shared_arena=shared_arena, layouts=layouts)
            opened.add(model.spec.name)
        for adapter in (adapter for adapter in job.adapters if adapter.name not in opened):
            yield _load_adapter(adapter, job.adapter_facts[adapter.name])
            opened.add(adapter.name)
        pipeline = plan_pipeline(job.pipeline, spec.folder) if job.pipeline else None
        memory = deployment.facts.memory.get(job.spec.name)
        yield replace(planned_job(job), retry=retry, memory=memory, pipeline=pipeline)
