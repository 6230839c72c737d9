"""What proves that the rows of a job's batches do not depend on each other, for the sessions that it runs on."""

from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.selection import keep_jobs
from ortdeploy.plan.steps import LoadAdapter, OpenSession, Plan, RunJob
from ortdeploy.providers.catalogue import CPU
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.row_proof import ProvenRows, RowProof


def row_proof(plan: Plan, step: RunJob, proven: ProvenRows, opened: OpenedSession) -> RowProof | None:
    """Return the proof for a session that the rows of a batch do not depend on each other."""
    if not step.row_check.counts:
        return None
    parts = _parts(step, opened)
    steps = [one for one in keep_jobs(plan, [step.job]).steps if not isinstance(one, RunJob)]
    models = [
        [one.sha256, encode(one.options), encode(one.run_options)] for one in steps if isinstance(one, OpenSession)
    ]
    adapters = [[one.adapter, one.sha256] for one in steps if isinstance(one, LoadAdapter)]
    candidates = [[one.candidate.name, encode(one.candidate.providers)] for one in parts]
    versions = [fact.value for fact in plan.facts if fact.kind == "ONNX Runtime version"]
    holds_for = [models, adapters, candidates, step.identity.get("pipeline"), versions]
    is_on_cpu = all(provider.name == CPU for one in parts for provider in one.candidate.providers)
    return RowProof(step, proven, holds_for, is_on_cpu=is_on_cpu)


def _parts(step: RunJob, opened: OpenedSession) -> list[OpenedSession]:
    """Return the sessions that a session of a job consists of: itself, or those of a pipeline's models."""
    if step.pipeline is None:
        return [opened]
    from ortdeploy.pipelines.component import components_of  # noqa: PLC0415  few jobs run a pipeline

    return [one.opened for one in components_of(opened.session)]
