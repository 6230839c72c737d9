"""Writes down the plan of one deployment, in which no rule found an error."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.deployment.resolved import (
    Deployment,
    ResolvedJob,
    ResolvedModel,
)
from ortdeploy.deployment.threads import (
    threads_of_session,
)
from ortdeploy.files.names import REPORT, REPORTS, is_file, is_there
from ortdeploy.manifest.job_order import jobs_before
from ortdeploy.plan.steps import FinishedJob, OpenSession, Plan, PlannedFiles, Step
from ortdeploy.planning.make.checks import make_checks
from ortdeploy.planning.make.facts import chosen_jobs, plan_facts
from ortdeploy.planning.make.fusions import FusedStep, fused_steps, opening_of_fused
from ortdeploy.planning.make.job import planned_job, planned_output
from ortdeploy.planning.make.op_lines import op_lines, opening_of
from ortdeploy.planning.make.pipeline import plan_pipeline
from ortdeploy.planning.make.sessions import planned_adapter, planned_layouts, planned_opening


def make_plan(
    deployment: Deployment,
    only_jobs: Collection[str] | None = None,
    *,
    retry: bool = False,
    new_run: bool = False,
    due: Collection[str] = (),
) -> Plan:
    """Write down the steps for a deployment in which no rule found an error. `retry`: run failed rows only.

    Jobs that are `due` get their steps even if they are finished, as if nothing had run yet.
    """
    spec = deployment.spec
    jobs = chosen_jobs(deployment, only_jobs)
    to_run = _jobs_to_run(jobs, retry=retry, due=due)
    named = {job.spec.name for job in to_run}
    return Plan(
        deployment=spec.name,
        manifest=spec.path,
        folder=spec.folder,
        profile=spec.profile,
        sets=spec.sets,
        overlays=tuple(str(Path(overlay).absolute()) for overlay in spec.overlays),
        roots=spec.roots,
        facts=plan_facts(deployment, only_jobs),
        gates=make_checks(deployment, {one.spec.name for job in to_run for one in job.models if one.spec.gate}),
        steps=tuple(_steps(to_run, deployment, retry=retry)),
        finished=tuple(_finished(job, deployment, new_run=new_run) for job in jobs if job.spec.name not in named),
        jobs=None if only_jobs is None else tuple(job.spec.name for job in jobs),
        inputs=plan_inputs(deployment, only_jobs),
        choice=spec.choice,
    )


def plan_inputs(deployment: Deployment, only_jobs: Collection[str] | None) -> tuple[PlannedFiles, ...]:
    """Return the files that a plan for some jobs of this deployment reads or has read."""
    jobs = [job for job in chosen_jobs(deployment, only_jobs) if job.upstream is None]
    return tuple(PlannedFiles(job=job.spec.name, files=job.input.present) for job in jobs)


def _jobs_to_run(jobs: Sequence[ResolvedJob], *, retry: bool, due: Collection[str]) -> list[ResolvedJob]:
    """Return the jobs that have something to do, and the jobs that read what such jobs commit."""
    found: dict[str, ResolvedJob] = {}
    for job in jobs:
        is_fed = job.upstream is not None and job.upstream.name in found
        is_left = job.input.states or job.input.superseded or job.output.state in {"part", "stale"}
        has_work = job.has_work and (job.upstream is None or bool(is_left))
        if not job.is_waiting and (retry or job.spec.name in due or has_work or is_fed):
            found[job.spec.name] = job
    return list(found.values())


def _why_waiting(job: ResolvedJob, deployment: Deployment) -> str | None:
    """Return what an unfinished job without work waits for."""
    if job.is_waiting and job.input.problem is not None:
        return job.input.problem.detail
    if job.upstream is None or job.output.state == "finished":
        return None
    first = " ".join(f"--job {name}" for name in jobs_before(job.spec.name, deployment.spec.jobs))
    return (
        f'it reads the rows of job "{job.upstream.name}", and there are none that it has not read. Apply {first} first'
    )


def _finished(job: ResolvedJob, deployment: Deployment, *, new_run: bool) -> FinishedJob:
    output = job.spec.output
    folder = Path(deployment.spec.folder) / output.path
    lacking, has_report = _lacking_forms(job, folder), is_file(folder / REPORT)
    return FinishedJob(
        job=job.spec.name,
        output=output.shown,
        path=output.path,
        rows=job.output.rows,
        committed=job.output.committed,
        failed=job.output.failed,
        skipped=job.output.skipped,
        new_run=new_run,
        waiting=_why_waiting(job, deployment),
        gone=job.input.gone if job.output.run is not None else (),
        left_over=planned_output(job) if job.output.left_over or (lacking and has_report) else None,
        unwritten=lacking if has_report else (),
        unmade=() if has_report or output.removable else lacking,
    )


def _lacking_forms(job: ResolvedJob, folder: Path) -> tuple[str, ...]:
    """Return the forms of the report that are asked for and not there; an output that is completed gets them then."""
    if job.output.left_over or job.output.read_only or job.output.run is None:
        return ()
    return tuple(form for form in job.spec.reports if not is_there(folder / REPORTS[form]))


def _steps(jobs: Sequence[ResolvedJob], deployment: Deployment, *, retry: bool) -> Iterator[Step]:
    opened: set[str] = set()
    spec = deployment.spec
    for job in jobs:
        fused = tuple(fused_steps(job))
        lines = tuple(line for line in op_lines(job) if not any(line.last in one.lines for one in fused))
        yield from (opening_of(line, job.spec.limits.threads) for line in lines)
        resources = deployment.facts.resources
        pipeline = plan_pipeline(job.pipeline, spec.folder, resources, lines, fused) if job.pipeline else None
        yield from (_opening_fused(one, job, jobs) for one in fused)
        alone = job.models if pipeline is None else [one for one in job.models if one.spec.name in pipeline.sessions]
        for model in (model for model in alone if model.spec.name not in opened):
            opening, varying = _opening(model, jobs)
            shared_arena = (spec.shared_arena or {}) if model.spec.memory.shared_arena else None
            layouts = tuple(planned_layouts(model, deployment, jobs, varying=varying))
            yield replace(opening, shared_arena=shared_arena, thread_layouts=layouts)
            opened.add(model.spec.name)
        for adapter in (adapter for adapter in job.adapters if adapter.name not in opened):
            yield planned_adapter(adapter, job.adapter_facts[adapter.name])
            opened.add(adapter.name)
        step = planned_job(job)
        within = replace(step.limits, forecast=deployment.preflight.memory.get(job.spec.name))
        yield replace(step, retry=retry, limits=within, pipeline=pipeline)


def _opening(model: ResolvedModel, jobs: Sequence[ResolvedJob]) -> tuple[OpenSession, bool]:
    """Return the step that opens a model for some jobs, and whether its runs may differ in shape."""
    limits = [one.spec.limits.threads for one in jobs if model in one.models]
    varying = any(one.has_varying_shapes for one in jobs if model in one.models)
    return planned_opening(model, threads_of_session(model.spec, limits), varying=varying), varying


def _opening_fused(step: FusedStep, job: ResolvedJob, jobs: Sequence[ResolvedJob]) -> OpenSession:
    model = next(one for one in job.models if one.spec.name == step.model)
    return opening_of_fused(_opening(model, jobs)[0], step)
