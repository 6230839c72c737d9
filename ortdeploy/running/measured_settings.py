"""Settings that a job finds by measuring on its rows: thread layouts and batch sizes, and which of them are known."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import bound
from ortdeploy.files.remembered import TuningCache
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.plan.steps import OpenSession, PlannedThreadLayout, RunJob
from ortdeploy.process.cores import core_count
from ortdeploy.process.memory_limit import MemoryBound
from ortdeploy.results.results import JobResult
from ortdeploy.running.opened_models import OpenedModels, with_layout
from ortdeploy.sessions.opening import OpenedModel

if TYPE_CHECKING:
    from ortdeploy.plan.part_table import Shard
    from ortdeploy.running.fatal_runs import FatalRuns
    from ortdeploy.running.layout_trial import LayoutTrial
    from ortdeploy.running.shards.told import Told
    from ortdeploy.sessions.trials import StuckTrialError


class MeasuredSettings(Struct, frozen=True, kw_only=True):
    """What measures settings for the jobs of a plan. `record_of` returns what the ledger knows of a job's output.

    `stuck` returns how a job ends whose trial hangs. `shard`: others may make rows of the same jobs. `is_watched`:
    crashes are looked for. `fatal` has by job the runs that ended an earlier process.
    """

    models: OpenedModels
    tuning_cache: TuningCache
    ledger: Ledger
    record_of: Callable[[RunJob], OutputRecord | None]
    stuck: "Callable[[RunJob, StuckTrialError], JobResult]"
    shard: "Shard | Told | None"
    is_watched: bool
    fatal: "Mapping[str, FatalRuns]"

    def laid_out(self, step: OpenSession, known: dict[str, JobResult]) -> OpenSession:
        """Return the step with the thread layout that is best for its first job, if the plan asks to measure it.

        If a run hangs meanwhile, how that job ends is `known` from then on. If the job is to try layouts while it runs,
        return the step with the one that it begins with. A shard keeps the layout of the first one. Raises
        OrtdeployError if it cannot, OSError.
        """
        jobs = [job for job in self.models.jobs_of(step) if job.job not in known]
        if step.tried_layouts and jobs:
            return with_layout(step, self._begun_layout(step, jobs[0]))
        if not step.thread_layouts or not jobs:
            return step
        if self.shard is None:
            name = self._measured(step, jobs[0], known)
        else:
            from ortdeploy.running.shards.kept_layout import kept_layout  # noqa: PLC0415  only for shards

            find = partial(self._measured, step, jobs[0], known)
            name = kept_layout(self.models.plan, self.shard, jobs, self.ledger, find)
        found = next((one for one in step.thread_layouts if one.name == name), None)
        return replace(step, thread_layouts=()) if found is None else with_layout(step, found)

    def _measured(self, step: OpenSession, job: RunJob, known: dict[str, JobResult]) -> str | None:
        """Return the layout that is best for a job; None if that cannot be measured."""
        from ortdeploy.autotune.thread_layout import choose_layout  # noqa: PLC0415  only where it is measured
        from ortdeploy.sessions.trials import StuckTrialError  # noqa: PLC0415  only where it is measured

        self.models.on_native_call({"model": step.model, "job": job.job})
        bound = MemoryBound(self.models.memory_limit(step), core_count())
        with bound, suppress(OrtdeployError):  # the job itself says what is wrong with its input
            ops = self.models.op_runners(job)
            try:
                found = choose_layout(
                    self.models.plan,
                    step,
                    job,
                    self.tuning_cache,
                    partial(self.models.open_layout, step),
                    ops,
                    may_measure=self._may_measure(job),
                )
            except StuckTrialError as error:
                known[job.job] = self.stuck(job, error)
            else:
                return None if found is None else found.name
        return None

    def trial(self, step: RunJob, opened: OpenedModel) -> "LayoutTrial | None":
        """Return what tries the other layouts while the job runs; None if there are none, or the best one is known."""
        opening = opened.step
        if opening is None or not opening.tried_layouts or step.retry or self.shard is not None:
            return None
        if self.is_watched:
            return None
        key = tried_layouts_key(opening, step)
        if self.tuning_cache.find(key) is not None:
            return None
        from ortdeploy.running.layout_trial import LayoutTrial  # noqa: PLC0415  only where layouts are tried

        return LayoutTrial(
            opened,
            [one for one in opening.tried_layouts if one.name != opened.layout],
            open_layout=partial(self.models.open_layout, opening),
            keep=partial(self.tuning_cache.keep, key),
            last_row=step.input.rows,
        )

    def with_found_batch(self, step: RunJob, opened: OpenedModel) -> RunJob:
        """Return a job with the batch size that it began with, or that is measured on its first rows."""
        from ortdeploy.autotune.batch_size import choose_batch  # noqa: PLC0415  only where it is measured
        from ortdeploy.sessions.trials import StuckTrialError  # noqa: PLC0415  only where it is measured

        record = self.record_of(step)
        is_own = record is not None and dict(record.identity) == dict(step.identity)
        begun_with = record.batch_size if record is not None and is_own else None
        with bound(job=step.job, model=step.model):
            try:
                may_measure = self._may_measure(step)
                return choose_batch(
                    self.models.plan, step, opened, begun_with, self.tuning_cache, may_measure=may_measure
                )
            except StuckTrialError:
                raise
            except OrtdeployError:  # the job itself says what is wrong with its input
                return step

    def _begun_layout(self, step: OpenSession, job: RunJob) -> PlannedThreadLayout:
        """Return the layout with which a job begins: that of its parts, the one that was found here, or the predicted.

        A shard begins with what is predicted, because others may make the rows beside its own.
        """
        record = self.record_of(job)
        if record is not None and record.origins:
            name = record.statistics.get("layout")
        else:
            name = self.tuning_cache.find(tried_layouts_key(step, job)) if self.shard is None else None
        return next((one for one in step.tried_layouts if one.name == name), step.tried_layouts[0])

    def _may_measure(self, step: RunJob) -> bool:
        """Return whether settings of a job may be measured: not where a run might end the process."""
        return not self.is_watched and not self.fatal.get(step.job)


def tried_layouts_key(step: OpenSession, job: RunJob) -> str:
    """Return the key under which the best of the layouts that a job tries is remembered."""
    from ortdeploy.autotune.thread_layout import layout_key  # noqa: PLC0415  only where layouts are free

    layouts = sorted(step.tried_layouts, key=lambda one: one.name)
    return layout_key("tried", replace(step, candidates=step.tried_layouts[0].candidates), job, layouts)
