"""Does what a plan's steps say: opens sessions, loads adapters, runs jobs, returns how each ended.

It knows no format, no provider and no YAML. One job failing does not lose the others' results.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, RefusedError, StoppedError, failure_at
from ortdeploy.events import bound, log
from ortdeploy.files.names import DECISIONS
from ortdeploy.files.tuning_cache import TuningCache
from ortdeploy.jobs.ending import Ending
from ortdeploy.jobs.job import JobRun
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_report import NOT_BEGUN, log_end, recorded_result
from ortdeploy.jobs.opened_models import Opened, OpenedModels
from ortdeploy.jobs.path_guard import leads_out
from ortdeploy.jobs.pause_watch import PauseWatch
from ortdeploy.jobs.pinned_files import Files, UnpinnedFiles
from ortdeploy.jobs.row_independence import row_proof
from ortdeploy.jobs.run_settings import RunSettings
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.parts.settled import files_of, standing_output, with_settled_types
from ortdeploy.plan.made_by import made_by
from ortdeploy.plan.plan_file import plan_digest
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import (
    LoadAdapter,
    OpenSession,
    Plan,
    RunJob,
)
from ortdeploy.process.tracing import traced_job
from ortdeploy.results.results import JobResult, Observer, Status
from ortdeploy.runtime.protocol import Runtime
from ortdeploy.sessions.opening import OnNativeCall, OpenedModel, SkippedSession
from ortdeploy.sessions.row_independence import ProvenRows

if TYPE_CHECKING:
    from ortdeploy.jobs.retry import RetryRun
    from ortdeploy.jobs.shard_run import ShardRun
    from ortdeploy.parts.assigned_parts import AssignedParts
    from ortdeploy.plan.part_table import Shard
    from ortdeploy.sessions.bounded_runs import HungMeasurementError
    from ortdeploy.streaming.crashed_runs import CrashedRuns


_SIGNAL = "a signal came before it was opened"


class Execution(Struct, frozen=True, kw_only=True):
    """One run of one plan, with all that it needs from outside. `stop` tells when to end early.

    `on_native_call` is called before native code is entered; `native_text` returns what native libraries printed since
    the last call. `skipped` are the sessions of a model that were passed over before; `tuning_cache` has the batch
    sizes and thread layouts that were found before. `files` are the files to open in place of the plan's.
    `row_limit`: only this number of rows of each job is run, from the first on. `shard`: only its parts of each job are
    run, or those that a driver asks for. `fatal` has by job the runs that ended an earlier process. `on_run` is called
    with each run and its job, if crashes are looked for; then nothing is measured on rows without such a call. `began`
    has by job when an earlier process began it, by the monotonic clock, which all processes share. `on_proof` is called
    before and after each run with which a job's rows are compared; `unproven` says by job why none are to be compared.
    `digests` has by job that of what the plan says of it, if another process has read the plan. `cores`: as many as an
    engine has reserved for this process; None: it may use all. `too_large` says by job why memory has no room for it.
    """

    plan: Plan
    run_id: str
    runtime: Runtime
    ledger: Ledger
    observer: Observer
    stop: Callable[[], bool]
    on_native_call: OnNativeCall = lambda _doing: None
    native_text: Callable[[], str] = lambda: ""
    skipped: Mapping[str, tuple[SkippedSession, ...]] = field(default_factory=dict)
    tuning_cache: TuningCache = field(default_factory=lambda: TuningCache(None))
    files: Files = field(default_factory=UnpinnedFiles)
    row_limit: int | None = None
    shard: "Shard | AssignedParts | None" = None
    fatal: "Mapping[str, CrashedRuns]" = field(default_factory=dict)
    on_run: Callable[[str, Sequence[int]], None] | None = None
    began: Mapping[str, float] = field(default_factory=dict)
    on_proof: Callable[[str, bool], None] | None = None
    unproven: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    too_large: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> tuple[JobResult, ...]:
        """Do every step; each job ends in a result."""
        return tuple(self.results())

    def results(self) -> Iterator[JobResult]:
        """Do every step, and yield each job's result when it ends."""
        ended: dict[str, Status] = {}
        for result in self._results(ended):
            ended[result.job] = result.status
            yield result

    def _results(self, ended: Mapping[str, Status]) -> Iterator[JobResult]:
        """Do every step; `ended` says of each job that has ended how it did."""
        yield from self._finished()
        known = {**self._too_large(), **self._paused(), **self._unshared()}
        needed = {name for step in run_jobs(self.plan) if step.job not in known for name in step.sessions}
        models = OpenedModels(
            plan=self.plan,
            runtime=self.runtime,
            files=self.files,
            on_native_call=self._before_native_call,
            native_text=self.native_text,
        )
        settings = self._settings(models, known)
        for step in self.plan.steps:
            if isinstance(step, OpenSession | LoadAdapter) and step.session not in needed:
                continue
            why_not = self._why_not(step)
            match step:
                case OpenSession() | LoadAdapter() if why_not is not None:
                    models.by_name[step.session] = why_not
                case RunJob() if step.job in known:
                    yield known[step.job]
                case RunJob() if why_not is not None:
                    yield self._refused(step, why_not)
                case OpenSession():
                    models.by_name[step.session] = self._opened(step, settings)
                case LoadAdapter():
                    models.load_adapter(step)
                case RunJob():
                    yield self._run_bound(step, settings, ended)

    def _why_not(self, step: OpenSession | LoadAdapter | RunJob) -> OrtdeployError | None:
        """Return why a step must not be done: it leads out of the tree, or a signal has come; None if it may."""
        stray = leads_out(self.plan, step)
        return StoppedError(_SIGNAL) if stray is None and self.stop() else stray

    def _before_native_call(self, doing: Mapping[str, str]) -> None:
        """Tell what native code is about to do. Raises StoppedError if it would open something after a signal."""
        if "session" in doing and self.stop():
            raise StoppedError(_SIGNAL)
        self.on_native_call(doing)

    def _finished(self) -> Iterator[JobResult]:
        """Yield the results of jobs that the plan found finished, once what is left in their outputs is seen to."""
        if not self.plan.finished:
            return
        from ortdeploy.jobs.finished_jobs import completed, nothing_to_do  # noqa: PLC0415  only for such jobs

        for job in self.plan.finished:
            yield nothing_to_do(job) if self.shard is not None else completed(self.plan, job, self.ledger)

    def _opened(self, step: OpenSession, settings: RunSettings) -> Opened:
        """Return the sessions of a model, or why there is none."""
        try:
            laid_out = settings.laid_out(step)
        except OrtdeployError as error:
            return error
        except OSError as error:
            return OrtdeployError(failure_at(self.plan.folder, error))
        return settings.models.open(laid_out, laid_out.candidates, self.skipped.get(step.model, ()))

    def _settings(self, models: OpenedModels, known: dict[str, JobResult]) -> RunSettings:
        return RunSettings(
            models=models,
            tuning_cache=self.tuning_cache,
            ledger=self.ledger,
            record_of=self._record,
            stuck=self._stuck_result,
            known=known,
            shard=self.shard,
            cores=self.cores,
            is_watched=self.on_run is not None,
            fatal=self.fatal,
        )

    def _paused(self) -> dict[str, JobResult]:
        """Return the results of jobs that must pause before their sessions are opened."""
        found = {}
        for step in run_jobs(self.plan):
            watch = self._pause_watch(step, self.began.get(step.job))
            if watch():
                found[step.job] = self._ended(step, Ending(status=Status.PAUSED, reason=watch.reason))
                if not step.retry and self.shard is None:
                    self._note_pause(step, watch.reason)
        return found

    def _too_large(self) -> dict[str, JobResult]:
        """Return the results of jobs for which there is not enough memory."""
        steps = (step for step in run_jobs(self.plan) if step.job in self.too_large)
        return {step.job: self._refused(step, RefusedError(self.too_large[step.job])) for step in steps}

    def _unshared(self) -> dict[str, JobResult]:
        """Return the results of jobs whose parts no shard can make, before anything is opened or measured for them."""
        if self.shard is None:
            return {}
        from ortdeploy.jobs.shard_run import why_not_shared  # noqa: PLC0415  only for shards

        why_not = [(step, why_not_shared(step)) for step in run_jobs(self.plan)]
        return {
            step.job: self._refused(step, RefusedError(f"{step.output.shown} cannot be made in shards: {why}"))
            for step, why in why_not
            if why is not None
        }

    def _note_pause(self, step: RunJob, reason: str | None) -> None:
        """Note a pause in the ledger, for `status` and for the margin to the limit; no file is taken up by that."""
        key = self.ledger.key(Path(self.plan.folder) / step.output.path)
        if self.ledger.output(key) is None:
            self.ledger.begin(key, made_by=made_by(self.plan, step), job=step.job, run=self.run_id)
        self.ledger.end(key, Status.PAUSED, reason)

    def _record(self, step: RunJob) -> OutputRecord | None:
        """Return the ledger's record of a job's output; None if a new run replaces it."""
        record = self.ledger.output(self.ledger.key(Path(self.plan.folder) / step.output.path))
        return None if record is None or record.run == step.output.replaces else record

    def _pause_watch(self, step: RunJob, began: float | None) -> PauseWatch:
        place = Path(self.plan.folder) / step.output.path
        record = self.ledger.output(self.ledger.key(place)) if step.timing.pause is not None else None
        paused_for = record.reason if record is not None and record.status == Status.PAUSED else None
        return PauseWatch(step.timing, place, paused_for or "", began=began)

    @staticmethod
    def finished(plan: Plan) -> tuple[JobResult, ...]:
        """Return the results of jobs that the plan found finished."""
        from ortdeploy.jobs.finished_jobs import nothing_to_do  # noqa: PLC0415  only where nothing is run

        return tuple(map(nothing_to_do, plan.finished))

    def _run_bound(self, step: RunJob, settings: RunSettings, ended: Mapping[str, Status]) -> JobResult:
        """Run a job on the rows that are there for it, if it reads another one's."""
        if step.input.upstream is None or step.retry or self.shard is not None:
            return self._run_job(step, settings)
        from ortdeploy.jobs.upstream import bind_upstream  # noqa: PLC0415
        from ortdeploy.parts.left_over import complete_left_over  # noqa: PLC0415  only for jobs that read others' rows

        try:
            bound = bind_upstream(step, self.plan.folder, self.ledger, ended)
            if isinstance(bound, Ending):
                complete_left_over(self.ledger, Path(self.plan.folder) / step.output.path, step.output)
        except OrtdeployError as error:
            return self._refused(step, error)
        if isinstance(bound, RunJob):
            return self._run_job(bound, settings)
        log.info("job.waits", job=step.job, model=step.model, reason=bound.reason)
        return recorded_result(step, self._record(step), bound)

    def _run_job(self, step: RunJob, settings: RunSettings) -> JobResult:
        """Run a job. If the provider fails during it, continue where it stopped, with the model's next session."""
        models, began = settings.models, self.began.get(step.job, time.monotonic())
        try:
            settings.open_for(step)
        except OrtdeployError as error:
            return self._refused(step, error)
        except OSError as error:
            return self._refused(step, OrtdeployError(failure_at(self.plan.folder, error)))
        if step.job in settings.known:
            return settings.known[step.job]
        while True:
            opened = models.of_job(step)
            if isinstance(opened, OrtdeployError):
                return self._refused(step, opened)
            result = self._run_on(step, opened, settings, began)
            if not models.go_on(step, opened, result):
                return result

    def _run_on(self, step: RunJob, opened: OpenedModel, settings: RunSettings, began: float) -> JobResult:
        self.on_native_call({"model": step.model, "job": step.job})
        if step.batching.auto:
            from ortdeploy.sessions.bounded_runs import HungMeasurementError  # noqa: PLC0415  only where it is measured

            try:
                step = settings.with_found_batch(step, opened)
            except HungMeasurementError as error:
                return self._stuck_result(step, error)
        if self.on_run is not None:  # else a file that crashes its decoder would do so during a run of other rows
            step = replace(step, limits=replace(step.limits, threads=1))
        providers = list(dict.fromkeys(p.name for one in opened.sessions for p in one.candidate.providers))
        with bound(job=step.job, model=step.model, providers=providers):
            folder = Path(self.plan.folder) / step.output.path
            if self.shard is None:
                try:
                    record = standing_output(step, folder, self.ledger)
                    step = with_settled_types(step, record, files_of(record, folder))
                except (OSError, ValueError, OrtdeployError) as error:
                    return self._refused(step, OrtdeployError(f"{step.output.shown} cannot be read: {error}"))
            context = JobContext(
                plan=self.plan,
                step=step,
                output=OpenOutput.of(self.ledger, folder, step.output.upload),
                made_by=made_by(self.plan, step),
                plan_digest=self.digests.get(step.job) or plan_digest(self.plan, step.job),
                opened=opened,
                run_id=self.run_id,
                observer=self.observer,
                stop_asked=self.stop,
                pause=self._pause_watch(step, began),
                native_text=self.native_text,
                prove=partial(
                    row_proof,
                    self.plan,
                    step,
                    ProvenRows(self.tuning_cache),
                    on_run=None if self.on_proof is None else partial(self.on_proof, step.job),
                    why_not=self.unproven.get(step.job),
                ),
                files=self.files,
                row_limit=self.row_limit,
                fatal=self.fatal.get(step.job, ()),
                on_run=None if self.on_run is None else partial(self.on_run, step.job),
            )
            if self.shard is None and context.output.upload is None and (context.output.folder / DECISIONS).is_dir():
                return self._run_after_shards(context)
            return self._traced(context)

    def _run_after_shards(self, context: JobContext) -> JobResult:
        """Run a job alone on an output that shards have begun, and note beside its parts what they do not know."""
        from ortdeploy.jobs.rebuild import copied_afterwards  # noqa: PLC0415  only for such outputs

        try:
            with copied_afterwards(context):
                return self._traced(context)
        except (OSError, OrtdeployError) as error:
            return self._refused(context.step, OrtdeployError(failure_at(context.output.folder, error)))

    def _run_all(self, context: JobContext) -> JobResult:
        """Run the rows of changed files again, if there are some, then what is new.

        A retry leaves them to `apply`, and a shard refuses.
        """
        step = context.step
        if not step.input.rerun or step.retry or self.shard is not None:
            return self._run_of(context).run()
        from ortdeploy.jobs.rerun import RerunRun  # noqa: PLC0415  only for files that changed

        rerun = RerunRun(context)
        result = rerun.run()
        return result if result is not None else self._run_of(replace(context, step=rerun.step)).run()

    def _run_of(self, context: JobContext) -> "JobRun | RetryRun | ShardRun":
        if self.shard is not None:
            from ortdeploy.jobs.shard_run import ShardRun  # noqa: PLC0415  only for shards

            return ShardRun(context, self.shard)
        if context.step.retry:
            from ortdeploy.jobs.retry import RetryRun  # noqa: PLC0415  only for a retry

            return RetryRun(context)
        return JobRun(context)

    def _traced(self, context: JobContext) -> JobResult:
        """Run a job within its span, if spans are sent."""
        step = context.step
        known = {"deployment": self.plan.deployment, "job": step.job, "model": step.model, "run": self.run_id}
        with traced_job(**known) as trace:
            result = self._run_all(replace(context, trace=trace))
            if trace is not None:
                failed = (result.reason or "") if result.status is Status.FAILED else None
                counts = {name: getattr(result, name) for name in ("committed", "failed", "skipped")}
                trace.end(reason=failed, status=str(result.status), **counts)
        return result

    def _stuck_result(self, step: RunJob, error: "HungMeasurementError") -> JobResult:
        """Return how a job ends before it has begun, because a run on its first rows hangs."""
        first = step.input.first_row
        rows = tuple(range(first, first + error.rows))
        return self._ended(step, Ending(status=Status.FAILED, reason=str(error), stuck=rows))

    def _refused(self, step: RunJob, why: OrtdeployError) -> JobResult:
        """Return the result of a job that cannot begin."""
        if isinstance(why, StoppedError):
            return self._ended(step, NOT_BEGUN)
        ending = Ending(status=Status.FAILED, reason=str(why))
        return replace(self._ended(step, ending), refused=isinstance(why, RefusedError))

    def _ended(self, step: RunJob, ending: Ending) -> JobResult:
        """Return the result of a job that ends before it has begun, and log it."""
        try:
            record = self._record(step)
        except OrtdeployError:
            record = None
        result = recorded_result(step, record, ending)
        with bound(job=step.job, model=step.model):
            log_end(result)
        return result
