"""What proves that the rows of a job's batches do not depend on each other, for the sessions that it runs on."""

from typing import Any

from ortdeploy.files.tuning_cache import TuningCache, choice_key
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.selection import keep_jobs
from ortdeploy.plan.steps import LoadAdapter, OpenSession, Plan, RunJob
from ortdeploy.providers.catalogue import CPU
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.row_independence import OnProof, ProvenRows, RowProof


def row_proof(
    plan: Plan,
    step: RunJob,
    proven: ProvenRows,
    opened: OpenedSession,
    *,
    on_run: OnProof | None = None,
    why_not: str | None = None,
) -> RowProof | None:
    """Return the proof for a session that the rows of a batch do not depend on each other.

    `on_run` is told of its runs. `why_not` says why nothing is to be compared, if so.
    """
    if not step.row_check.counts:
        return None
    parts = _parts(step, opened)
    candidates = [[one.candidate.name, encode(one.candidate.providers)] for one in parts]
    models, adapters, *others = _made_of(plan, step)
    is_on_cpu = all(provider.name == CPU for one in parts for provider in one.candidate.providers)
    return RowProof(
        step,
        proven,
        [models, adapters, candidates, *others],
        is_on_cpu=is_on_cpu,
        on_run=on_run,
        why_not=why_not,
        survived=survived_key(plan, step) if step.row_check.may_trap else None,
    )


def may_end_its_process(plan: Plan, tuning_cache: TuningCache) -> bool:
    """Return whether the first proof of a job may end its process, and no earlier one has survived it."""
    steps = [step for step in plan.steps if isinstance(step, RunJob) and _may_trap(step)]
    return any(not tuning_cache.find(survived_key(plan, step)) for step in steps)


def _may_trap(step: RunJob) -> bool:
    return step.row_check.may_trap and step.row_check.agree is not None and step.batching.size != 1


def survived_key(plan: Plan, step: RunJob) -> str:
    """Return the key under which it is remembered that other batches of a job have not ended the process."""
    return choice_key("survived", *_made_of(plan, step))


def _made_of(plan: Plan, step: RunJob) -> list[Any]:
    """Return what a job runs: models, adapters, pipeline, and the version of ONNX Runtime."""
    steps = [one for one in keep_jobs(plan, [step.job]).steps if not isinstance(one, RunJob)]
    models = [
        [one.sha256, encode(one.options), encode(one.run_options)] for one in steps if isinstance(one, OpenSession)
    ]
    adapters = [[one.adapter, one.sha256] for one in steps if isinstance(one, LoadAdapter)]
    versions = [fact.value for fact in plan.facts if fact.kind == "ONNX Runtime version"]
    return [models, adapters, step.identity.get("pipeline"), versions]


def _parts(step: RunJob, opened: OpenedSession) -> list[OpenedSession]:
    """Return the sessions that a session of a job consists of: itself, or those of a pipeline's models."""
    if step.pipeline is None:
        return [opened]
    from ortdeploy.pipelines.component import components_of  # noqa: PLC0415  few jobs run a pipeline

    return [one.opened for one in components_of(opened.session)]
