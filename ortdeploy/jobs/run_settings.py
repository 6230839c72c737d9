"""The thread layouts and batch sizes of jobs: by rule, as an output was begun, or measured where the manifest asks.

A thread layout belongs to an output, because results may differ in a bit between runs of one thread and of several. It
is decided when the output begins and noted in its statistics, and in `layout.json` among shards. Whoever adds rows to
the output later, or runs some again, takes that one.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import bound
from ortdeploy.files.tuning_cache import TuningCache
from ortdeploy.jobs.opened_models import OpenedModels, as_planned, with_layout, with_one_thread
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.plan.steps import OpenSession, RunJob
from ortdeploy.plan.thread_layout import BY_RULE, ThreadLayout, layout_of_name
from ortdeploy.process.cores import core_count, usable_cores
from ortdeploy.process.memory_limit import MemoryBound
from ortdeploy.results.results import JobResult
from ortdeploy.sessions.opening import OpenedModel

if TYPE_CHECKING:
    from ortdeploy.parts.assigned_parts import AssignedParts
    from ortdeploy.plan.part_table import Shard
    from ortdeploy.sessions.bounded_runs import HungMeasurementError
    from ortdeploy.streaming.crashed_runs import CrashedRuns


class RunSettings(Struct, frozen=True, kw_only=True):
    """What decides settings for the jobs of a plan. `record_of` returns what the ledger knows of a job's output.

    `stuck` returns how a job ends whose trial hangs, and `known` has by job how it ended. `shard`: others may make rows
    of the same jobs. `cores`: as many as an engine has reserved for this process. `is_watched`: crashes are looked for.
    `fatal` has by job the runs that ended an earlier process. `names` are those of the thread layouts, by job.
    """

    models: OpenedModels
    tuning_cache: TuningCache
    ledger: Ledger
    record_of: Callable[[RunJob], OutputRecord | None]
    stuck: "Callable[[RunJob, HungMeasurementError], JobResult]"
    known: dict[str, JobResult]
    shard: "Shard | AssignedParts | None"
    cores: int | None
    is_watched: bool
    fatal: "Mapping[str, CrashedRuns]"
    names: dict[str, str | None] = field(default_factory=dict)

    def laid_out(self, step: OpenSession) -> OpenSession:
        """Return the step with the thread layout of its first job's output. Raises OrtdeployError, OSError."""
        job = next((job for job in self.models.jobs_of(step) if job.job not in self.known), None)
        return step if job is None else self._laid_out_for(step, job)

    def open_for(self, job: RunJob) -> None:
        """Open those sessions of a job again that are open with the thread layout of another job's output.

        Raises OrtdeployError, OSError.
        """
        openings = [one for one in self.models.plan.steps if isinstance(one, OpenSession)]
        for step in (one for one in openings if one.session in job.sessions):
            opened = self.models.by_name.get(step.session)
            if isinstance(opened, OpenedModel):
                laid_out = self._laid_out_for(step, job)
                if opened.layout != (laid_out.thread_layouts[0].name if laid_out.thread_layouts else None):
                    del opened  # its memory is for the others
                    self.models.open_again(laid_out)

    def _laid_out_for(self, step: OpenSession, job: RunJob) -> OpenSession:
        if step.graph is not None:
            return with_one_thread(step) if self._is_by_rule(job) else step
        name = self._name(step, job)
        found = next((one for one in step.thread_layouts if one.name == name), None)
        if found is None and name is not None:
            layout = layout_of_name(name)
            if layout is None:
                raise OrtdeployError(
                    f'the rows of {job.output.shown} are made with the thread layout "{name}", which this version does '
                    "not know, and with another one their bits may differ. Use the version that began the output, or "
                    "apply with --new-run"
                )
            found = as_planned(step, layout, self._callers(layout, job), job.limits.threads)
        return replace(step, thread_layouts=()) if found is None else with_layout(step, found)

    def _is_by_rule(self, job: RunJob) -> bool:
        """Return whether callers run op steps too, each with the one thread that it has."""
        return job.thread_layout is not None and self._name(None, job) == BY_RULE.name

    def _name(self, step: OpenSession | None, job: RunJob) -> str | None:
        """Return the name of the thread layout of a job's output; None: the step says it all."""
        may_differ = job.thread_layout is not None or (step is not None and step.thread_layouts)
        if job.job not in self.names and may_differ:
            find = partial(self._found, step, job)
            if self.shard is None:
                self.names[job.job] = find()
            else:
                from ortdeploy.jobs.pinned_layout import kept_layout  # noqa: PLC0415  only for shards

                self.names[job.job] = kept_layout(self.models.plan, self.shard, job, self.ledger, find)
        return self.names.get(job.job)

    def _found(self, step: OpenSession | None, job: RunJob) -> str | None:
        """Return the layout with which an output was begun, or with which it begins now."""
        record = self.record_of(job)
        is_begun = record is not None and bool(record.origins)
        kept = record.statistics.get("layout") if record is not None and is_begun else None
        if step is None or not step.thread_layouts:
            return kept if is_begun else job.thread_layout
        return kept if kept in {one.name for one in step.thread_layouts} else self._measured(step, job)

    def _callers(self, layout: ThreadLayout, job: RunJob) -> int:
        """Return how many threads call each session: one for each core, unless the layout or the limits say less."""
        forecast = job.limits.forecast
        bounds = [job.limits.threads, forecast.callers_at_once if forecast else None]
        wanted = layout.callers or self.cores or usable_cores()
        return min([wanted, *(bound for bound in bounds if bound is not None)])

    def _measured(self, step: OpenSession, job: RunJob) -> str | None:
        """Return the layout that is best for a job; None if that cannot be measured.

        If a run hangs meanwhile, how the job ends is known from then on.
        """
        from ortdeploy.sessions.bounded_runs import HungMeasurementError  # noqa: PLC0415  only where it is measured
        from ortdeploy.tuning.thread_layout import choose_layout  # noqa: PLC0415  only where it is measured

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
            except HungMeasurementError as error:
                self.known[job.job] = self.stuck(job, error)
            else:
                return None if found is None else found.name
        return None

    def with_found_batch(self, step: RunJob, opened: OpenedModel) -> RunJob:
        """Return a job with the batch size that it began with, or that is measured on its first rows."""
        from ortdeploy.sessions.bounded_runs import HungMeasurementError  # noqa: PLC0415  only where it is measured
        from ortdeploy.tuning.batch_size import choose_batch  # noqa: PLC0415  only where it is measured

        record = self.record_of(step)
        is_own = record is not None and dict(record.identity) == dict(step.identity)
        begun_with = record.batch_size if record is not None and is_own else None
        with bound(job=step.job, model=step.model):
            try:
                may_measure = self._may_measure(step)
                return choose_batch(
                    self.models.plan, step, opened, begun_with, self.tuning_cache, may_measure=may_measure
                )
            except HungMeasurementError:
                raise
            except OrtdeployError:  # the job itself says what is wrong with its input
                return step

    def _may_measure(self, step: RunJob) -> bool:
        """Return whether settings of a job may be measured: not where a run might end the process."""
        return not self.is_watched and not self.fatal.get(step.job)
