"""Keeps a plan to which no rule objects, if `checked_plan` can complete it with other data.

It cannot if steps or forecasts depend on more than the files that are read. Nothing that may be a secret is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ortdeploy.deployment.resolved import Deployment, ResolvedJob
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.named_paths import pinned_files
from ortdeploy.plan.masked import masked_plan
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.plan.steps import Plan, RunJob, Step
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.preflight.memory_estimate import as_run, row_sizes
from ortdeploy.planning.probing.probe import data_places
from ortdeploy.planning.remembered.dependencies import rests_on_beside_data
from ortdeploy.planning.remembered.plan_cache import KIND, CheckedForecast, CheckedJob, CheckedPlan, digest_of_input
from ortdeploy.providers.secrets import masked_document

if TYPE_CHECKING:
    from ortdeploy.planning.remembered.nothing_to_do import AnswerMemo


_MOST_SIZES = 1000  # of a job, from before
_MOST_FORECASTS = 100


class ToKeep:
    """A plan to keep after its run. What it depends on is looked at before the run, which changes folders."""

    def __init__(self, recollection: "AnswerMemo", planned: Planned, paths: Sequence[str], state_dir: Path) -> None:
        """Take what was planned for manifests, just now."""
        self._recollection, self._state_dir = recollection, state_dir
        self._told = _told(planned, recollection.recall(KIND))
        rested_on = None if self._told is None else rests_on_beside_data(planned.deployments, paths, state_dir)
        self._seen = None if rested_on is None else recollection.look(rested_on)

    def keep(self) -> None:
        """Keep the plan; if it cannot be written, the next plan is made from the start."""
        if self._told is not None:
            self._recollection.remember(KIND, self._seen, str(self._state_dir), self._told)


def _told(planned: Planned, before: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return what to remember of a plan; None if other data might change more of it than files and rows.

    `before` is what was remembered and still holds, if the plan was made again for its data.
    """
    if len(planned.plans) != 1 or len(planned.deployments) != 1 or planned.diagnostics or planned.stand_ins:
        return None
    plan, deployment = planned.plans[0], planned.deployments[0]
    document = deployment.spec.document.data
    is_whole = {job.spec.name for job in deployment.jobs} == {one.job for one in plan.inputs}
    is_local = not any(is_url(file.path) for file in pinned_files(deployment.spec))
    is_open = masked_plan(plan) == plan and masked_document(document) == document
    if not (plan.steps and is_whole and is_local and is_open and deployment.spec.on_end is None):
        return None
    if not all(_is_simple(job, deployment) for job in deployment.jobs) or not all(map(_is_lasting, plan.steps)):
        return None
    checked = CheckedPlan(
        plan=replace(
            plan,
            steps=tuple(map(_without_files, plan.steps)),
            inputs=tuple(replace(one, files=()) for one in plan.inputs),
        ),
        jobs=tuple(_checked(job, deployment, plan, _known_before(before, job)) for job in deployment.jobs),
        packages=deployment.facts.runtime.packages,
        document=document,
    )
    return {"told": encode(checked)}


def _is_simple(job: ResolvedJob, deployment: Deployment) -> bool:
    """Return whether a job only reads new files, or the next ones, and measures no layouts."""
    if deployment.thread_layouts_of(job.model):
        return False
    found, output = job.input, job.output
    strange = found.changed or found.rerun or found.gone or found.unsettled or found.rows_before or found.rates
    settled = output.state != "stale" and not output.left_over
    return job.upstream is None and not (strange or found.unreadable) and settled and not job.changed


def _is_lasting(step: Step) -> bool:
    """Return whether only files, rows, and what follows from them, may change in a step."""
    if not isinstance(step, RunJob):
        return True
    forecast = step.limits.forecast
    return forecast is not None and not (forecast.thread_layouts or step.op_lines or step.retry)


def _without_files(step: Step) -> Step:
    """Return a step without the files that it reads."""
    return replace(step, input=replace(step.input, files=())) if isinstance(step, RunJob) else step


def _known_before(before: Mapping[str, Any] | None, job: ResolvedJob) -> CheckedJob | None:
    """Return what was known of the job before: which runs fit its graph, and what they take."""
    with suppress(TypeError, KeyError):
        jobs = decode(tuple[CheckedJob, ...], before["told"]["jobs"]) if before else ()
        return next((one for one in jobs if one.places.job == job.spec.name), None)
    return None


def _checked(job: ResolvedJob, deployment: Deployment, plan: Plan, known: CheckedJob | None) -> CheckedJob:
    sizes_before = known.run_sizes[-_MOST_SIZES:] if known else ()
    return CheckedJob(
        places=data_places(deployment.spec, job.spec),
        input=digest_of_input(job.input),
        identity=job.identity,
        layout=job.layout,
        has_work=any(isinstance(step, RunJob) and step.job == job.spec.name for step in plan.steps),
        run_sizes=tuple(sorted({*sizes_before, *job.batching.sizes_run(job.input.rows)})),
        forecasts=tuple(_forecasts(job, deployment, known))[:_MOST_FORECASTS],
        layout_by_rule=job.layout_by_rule,
    )


def _forecasts(job: ResolvedJob, deployment: Deployment, known: CheckedJob | None) -> Iterator[CheckedForecast]:
    """Yield a job's forecast, and those from before of runs of other sizes."""
    forecast = deployment.preflight.memory.get(job.spec.name)
    if forecast is not None:
        yield CheckedForecast(forecast=forecast, row_sizes=row_sizes(as_run(job, forecast.callers)))
    others = known.forecasts if known else ()
    yield from (one for one in others if not one.is_for(job.batching, job.input.rows))
