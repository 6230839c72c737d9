"""Does what a plan's steps say: opens sessions, loads adapters, runs jobs, returns how each ended.

It knows no format, no provider and no YAML. One job failing does not lose the others' results.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import bound, log
from ortdeploy.facts.data import FileState
from ortdeploy.facts.preflight import ROOMY
from ortdeploy.files.gate import Use, admit, require_inside
from ortdeploy.files.remembered import TuningCache
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.plan.part_table import Shard
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.selection import keep_jobs, run_jobs
from ortdeploy.plan.steps import (
    FinishedJob,
    LoadAdapter,
    OpenSession,
    Plan,
    PlannedSession,
    PlannedThreadLayout,
    RunJob,
)
from ortdeploy.process.memory import memory_of_the_group, trim_memory
from ortdeploy.process.memory_limit import MemoryBound
from ortdeploy.process.tracing import traced_job
from ortdeploy.records import record
from ortdeploy.results.results import JobResult, Observer, Status
from ortdeploy.running.ending import Ending
from ortdeploy.running.fatal_runs import FatalRuns
from ortdeploy.running.held_files import Files, UnheldFiles
from ortdeploy.running.job import JobRun
from ortdeploy.running.job_context import JobContext
from ortdeploy.running.job_report import log_end, recorded_result
from ortdeploy.running.left_over import complete_left_over
from ortdeploy.running.pause_watch import PauseWatch
from ortdeploy.runtime.protocol import Runtime
from ortdeploy.sessions.opening import ModelOpener, OnNativeCall, OpenedModel, OpenedSession, SkippedSession
from ortdeploy.sessions.releasable import held
from ortdeploy.sessions.row_proof import ProvenRows, RowProof
from ortdeploy.sessions.trials import StuckTrialError
from ortdeploy.sources.files import full_path
from ortdeploy.tensors.columns import OpRunners

if TYPE_CHECKING:
    from ortdeploy.plan.part_table import Shard
    from ortdeploy.running.layout_trial import LayoutTrial
    from ortdeploy.running.retry import RetryRun
    from ortdeploy.running.shards.shard_run import ShardRun
    from ortdeploy.running.shards.told import Told

_Opened = OpenedModel | OrtdeployError
"""A model's open sessions, or why there is none."""


@record
class Execution:
    """One run of one plan, with all that it needs from outside. `stop` tells when to end early.

    `on_native_call` is called before native code is entered; `native_text` returns what native libraries printed since
    the last call. `skipped` are the sessions of a model that were passed over before; `tuning_cache` has the batch
    sizes and thread layouts that were found before. `files` are the files to open in place of the plan's.
    `most_rows`: only this number of rows of each job is run, from the first on. `shard`: only its parts of each job are
    run, or those that a driver asks for. `fatal` has by job the runs that ended an earlier process. `on_run` is called
    with each run and its job, if crashes are looked for; then nothing is measured on rows without such a call.
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
    files: Files = field(default_factory=UnheldFiles)
    most_rows: int | None = None
    shard: "Shard | Told | None" = None
    fatal: Mapping[str, FatalRuns] = field(default_factory=dict)
    on_run: Callable[[str, Sequence[int]], None] | None = None

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
        sessions: dict[str, _Opened] = {}
        yield from map(self._completed, self.plan.finished)
        known = self._paused()
        needed = {name for step in run_jobs(self.plan) if step.job not in known for name in step.sessions}
        for step in self.plan.steps:
            if isinstance(step, OpenSession | LoadAdapter) and step.session not in needed:
                continue
            stray = self._leads_out(step)
            match step:
                case OpenSession() | LoadAdapter() if stray is not None:
                    sessions[step.session] = stray
                case RunJob() if stray is not None:
                    yield self._refused(step, stray)
                case RunJob() if step.job in known:
                    yield known[step.job]
                case OpenSession():
                    laid_out = self._laid_out(step, sessions, known)
                    sessions[step.session] = self._open(laid_out, laid_out.candidates, self.skipped.get(step.model, ()))
                case LoadAdapter():
                    sessions[step.session] = self._load_adapter(step, sessions[step.session])
                case RunJob():
                    yield self._run_bound(step, sessions, ended)

    def _paused(self) -> dict[str, JobResult]:
        """Return the results of jobs that must pause before their sessions are opened."""
        found = {}
        for step in run_jobs(self.plan):
            watch = self._pause_watch(step)
            if watch():
                ending = Ending(status=Status.PAUSED, reason=watch.reason)
                found[step.job] = recorded_result(step, self._record(step), ending)
                log_end(found[step.job])
        return found

    def _record(self, step: RunJob) -> OutputRecord | None:
        """Return the ledger's record of a job's output; None if a new run replaces it."""
        record = self.ledger.output(self.ledger.key(Path(self.plan.folder) / step.output.path))
        return None if record is None or record.run == step.output.replaces else record

    def _pause_watch(self, step: RunJob) -> PauseWatch:
        record = self._record(step) if step.timing.pause is not None else None
        paused_for = record.reason if record is not None and record.status == Status.PAUSED else None
        return PauseWatch(step.timing, Path(self.plan.folder) / step.output.path, paused_for or "")

    def _leads_out(self, step: OpenSession | LoadAdapter | RunJob) -> OrtdeployError | None:
        """Say which path of a step leads out of the tree: a saved plan may have been changed since it was checked."""
        paths = (
            [step.output.path, *(one.path for one in _read_early(step))] if isinstance(step, RunJob) else [step.path]
        )
        full = (full_path(self.plan.folder, path) for path in paths if path)  # op steps have no file
        try:
            require_inside(full, (self.plan.folder, *self.plan.roots))
            if isinstance(step, RunJob) and step.output.upload is not None:
                admit(step.output.upload, Use.WRITE)
        except OrtdeployError as error:
            return error
        return None

    @staticmethod
    def finished(plan: Plan) -> tuple[JobResult, ...]:
        """Return the results of jobs that the plan found finished."""
        return tuple(map(_nothing_to_do, plan.finished))

    def _completed(self, job: FinishedJob) -> JobResult:
        """Return the result of a job that the plan found finished, all that was begun in its output being complete."""
        if job.left_over is None or self.shard is not None:
            return _nothing_to_do(job)
        try:
            complete_left_over(self.ledger, Path(self.plan.folder) / job.path, job.left_over)
        except OrtdeployError as error:
            log.error("job.failed", job=job.job, reason=str(error))
            return replace(_nothing_to_do(job), status=Status.FAILED, reason=str(error))
        return _nothing_to_do(job)

    def _open(
        self,
        step: OpenSession,
        candidates: Sequence[PlannedSession],
        skipped: tuple[SkippedSession, ...] = (),
        *,
        trial: bool = False,
    ) -> _Opened:
        """Open a model's sessions, or return why there is none."""
        opener = ModelOpener(
            runtime=self.runtime, on_native_call=self.on_native_call, native_text=self.native_text, trial=trial
        )
        limit = self._memory_limit(step)
        try:
            with MemoryBound(limit, os.cpu_count() or 1):
                return opener.open_model(self._without_arena(step, limit, trial=trial), candidates, skipped)
        except OrtdeployError as error:
            return error
        finally:
            if step.trim:
                trim_memory()

    def _laid_out(self, step: OpenSession, sessions: Mapping[str, _Opened], known: dict[str, JobResult]) -> OpenSession:
        """Return the step with the thread layout that is best for its first job, if the plan asks to measure it.

        If a run hangs meanwhile, how that job ends is `known` from then on. If the job is to try layouts while it runs,
        return the step with the one that it begins with.
        """
        jobs = [job for job in self._jobs_of(step) if job.job not in known]
        if step.tried_layouts and jobs:
            return _with_layout(step, self._begun_layout(step, jobs[0]))
        if not step.thread_layouts or not jobs:
            return step
        from ortdeploy.autotune.thread_layout import choose_layout  # noqa: PLC0415  only where it is measured

        self.on_native_call({"model": step.model, "job": jobs[0].job})
        found = None
        bound = MemoryBound(self._memory_limit(step), os.cpu_count() or 1)
        with bound, suppress(OrtdeployError):  # the job itself says what is wrong with its input
            ops = _runners(jobs[0], sessions)
            try:
                found = choose_layout(
                    self.plan,
                    step,
                    jobs[0],
                    self.tuning_cache,
                    partial(self._open_layout, step),
                    ops,
                    may_measure=self._may_measure(jobs[0]),
                )
            except StuckTrialError as error:
                known[jobs[0].job] = self._stuck_result(jobs[0], error)
        return replace(step, thread_layouts=()) if found is None else _with_layout(step, found)

    def _begun_layout(self, step: OpenSession, job: RunJob) -> PlannedThreadLayout:
        """Return the layout with which a job begins: that of its parts, the one that was found here, or the predicted.

        A shard begins with what is predicted, for others may make the rows beside its own.
        """
        record = self._record(job)
        if record is not None and record.origins:
            name = record.statistics.get("layout")
        else:
            name = self.tuning_cache.find(self._layout_key(step, job)) if self.shard is None else None
        return next((one for one in step.tried_layouts if one.name == name), step.tried_layouts[0])

    @staticmethod
    def _layout_key(step: OpenSession, job: RunJob) -> str:
        from ortdeploy.autotune.thread_layout import layout_key  # noqa: PLC0415  only where layouts are free

        layouts = sorted(step.tried_layouts, key=lambda one: one.name)
        return layout_key("tried", replace(step, candidates=step.tried_layouts[0].candidates), job, layouts)

    def _trial(self, step: RunJob, opened: OpenedModel) -> "LayoutTrial | None":
        """Return what tries the other layouts while the job runs; None if there are none, or the best one is known."""
        opening = opened.step
        if opening is None or not opening.tried_layouts or step.retry or self.shard is not None:
            return None
        if self.on_run is not None:
            return None
        key = self._layout_key(opening, step)
        if self.tuning_cache.find(key) is not None:
            return None
        from ortdeploy.running.layout_trial import LayoutTrial  # noqa: PLC0415  only where layouts are tried

        return LayoutTrial(
            opened,
            [one for one in opening.tried_layouts if one.name != opened.layout],
            open_layout=partial(self._open_layout, opening),
            keep=partial(self.tuning_cache.keep, key),
            last_row=step.input.rows,
        )

    def _open_layout(self, step: OpenSession, layout: PlannedThreadLayout) -> OpenedModel:
        """Open a model's sessions with one thread layout, to measure it. Raises OrtdeployError."""
        laid_out = replace(_with_layout(step, layout), probe=None)
        with bound(trial=layout.name):
            opened = self._open(laid_out, laid_out.candidates, trial=True)
            for loading in self.plan.steps:
                if isinstance(loading, LoadAdapter) and loading.session == step.session:
                    opened = self._load_adapter(loading, opened, trial=True)
        if isinstance(opened, OrtdeployError):
            raise opened
        return opened

    def _jobs_of(self, opening: OpenSession) -> list[RunJob]:
        return [step for step in self.plan.steps if isinstance(step, RunJob) and opening.session in step.sessions]

    def _memory_limit(self, opening: OpenSession) -> int | None:
        """Return the smallest memory limit of these sessions' jobs and of this process's control group."""
        limits = [*(step.limits.memory for step in self._jobs_of(opening)), memory_of_the_group()]
        return min((limit for limit in limits if limit is not None), default=None)

    def _without_arena(self, opening: OpenSession, limit: int | None, *, trial: bool) -> OpenSession:
        """Return the step without the CPU arena if a job may reach its limit, unless the manifest sets the arena.

        An arena that cannot grow takes nine tenths of the room, and again, until something fits: what is left is too
        little for its own books, which onnxruntime 1.31.1 then leaves broken. It aborts the process at a later run.
        """
        own_words = "enable_cpu_mem_arena" in opening.options or opening.shared_arena is not None
        if limit is None or own_words:
            return opening
        needs = (step.limits.forecast for step in self._jobs_of(opening))
        layout = opening.thread_layouts[0].name if opening.thread_layouts else None
        if all(need and need.unknown is None and need.total_of(layout) < limit * ROOMY for need in needs):
            return opening
        (log.debug if trial else log.info)(
            "session.without_arena", model=opening.model, session=opening.session, limit=limit
        )
        without = {"enable_cpu_mem_arena": False, "enable_mem_pattern": False}
        return replace(opening, options={**without, **opening.options})

    def _load_adapter(self, step: LoadAdapter, opened: _Opened, *, trial: bool = False) -> _Opened:
        if isinstance(opened, OrtdeployError):
            return opened
        try:
            for one in {id(one.session): one for one in opened.sessions}.values():  # callers share a session
                self.runtime.load_adapter(step, one.session)
                if one.probe is not None and one.probe.session is not None:
                    self.runtime.load_adapter(step, one.probe.session)
        except OrtdeployError as error:
            return error
        (log.debug if trial else log.info)("adapter.loaded", adapter=step.adapter, model=step.session)
        return opened

    def _run_bound(self, step: RunJob, sessions: dict[str, _Opened], ended: Mapping[str, Status]) -> JobResult:
        """Run a job on the rows that are there for it, if it reads another one's."""
        if step.input.upstream is None or step.retry or self.shard is not None:
            return self._run_job(step, sessions)
        from ortdeploy.running.upstream import bind_upstream  # noqa: PLC0415  only for jobs that read another one's rows

        try:
            bound = bind_upstream(step, self.plan.folder, self.ledger, ended)
            if isinstance(bound, Ending):
                complete_left_over(self.ledger, Path(self.plan.folder) / step.output.path, step.output)
        except OrtdeployError as error:
            return self._refused(step, error)
        if isinstance(bound, RunJob):
            return self._run_job(bound, sessions)
        log.info("job.waits", job=step.job, model=step.model, reason=bound.reason)
        return recorded_result(step, self._record(step), bound)

    def _run_job(self, step: RunJob, sessions: dict[str, _Opened]) -> JobResult:
        """Run a job. If the provider fails during it, continue where it stopped, with the model's next session."""
        while True:
            opened = self._compose(step, sessions)
            if isinstance(opened, OrtdeployError):
                return self._refused(step, opened)
            trial = self._trial(step, opened) if step.pipeline is None else None
            if trial is not None:
                sessions[step.session] = opened = trial.opened  # nobody else holds what the trial may let go of
            result = self._run_on(step, opened, trial)
            if trial is not None:
                sessions[step.session] = opened = held(trial.opened)
            name = _failed_model(step, opened)
            failed = sessions.get(name)
            if not (result.provider_failed and isinstance(failed, OpenedModel) and failed.remaining):
                if step.pipeline is None:
                    sessions[name] = opened.without(result.dropped)
                return result
            sessions[name] = self._open_next(name, failed, result.reason or "")

    @staticmethod
    def _refused(step: RunJob, why: OrtdeployError) -> JobResult:
        """Return the result of a job that cannot begin."""
        log.error("job.failed", job=step.job, model=step.model, reason=str(why))
        return JobResult(job=step.job, status=Status.FAILED, output=step.output.shown, reason=str(why))

    def _compose(self, step: RunJob, sessions: Mapping[str, _Opened]) -> _Opened:
        """Return the sessions of a job: its model's, or those that a pipeline makes of its models'."""
        try:
            ops = _runners(step, sessions)
        except OrtdeployError as error:
            return error
        opened = self._composed(step, sessions)
        if isinstance(opened, OrtdeployError) or not ops:
            return opened
        return replace(opened, sessions=tuple(replace(one, ops=ops) for one in opened.sessions))

    def _composed(self, step: RunJob, sessions: Mapping[str, _Opened]) -> _Opened:
        if step.pipeline is None:
            return sessions[step.session]
        opened = {name: sessions[name] for name in step.pipeline.sessions}
        refused = next((one for one in opened.values() if isinstance(one, OrtdeployError)), None)
        if refused is not None:
            return refused
        from ortdeploy.pipelines.compose import compose  # noqa: PLC0415  few jobs run a pipeline

        try:
            with self.files.composing(step.pipeline) as pipeline:
                return compose(pipeline, {k: v for k, v in opened.items() if isinstance(v, OpenedModel)})
        except OrtdeployError as error:
            return error

    def _run_on(self, step: RunJob, opened: OpenedModel, trial: "LayoutTrial | None") -> JobResult:
        self.on_native_call({"model": step.model, "job": step.job})
        try:
            step = self._with_found_batch(step, opened) if step.batching.auto else step
        except StuckTrialError as error:
            return self._stuck_result(step, error)
        providers = list(dict.fromkeys(p.name for one in opened.sessions for p in one.candidate.providers))
        with bound(job=step.job, model=step.model, providers=providers):
            context = JobContext(
                plan=self.plan,
                step=step,
                opened=opened,
                run_id=self.run_id,
                ledger=self.ledger,
                observer=self.observer,
                stop_asked=self.stop,
                pause=self._pause_watch(step),
                native_text=self.native_text,
                prove=partial(self._row_proof, step, ProvenRows(self.tuning_cache)),
                files=self.files,
                most_rows=self.most_rows,
                fatal=self.fatal.get(step.job, ()),
                on_run=None if self.on_run is None else partial(self.on_run, step.job),
                trial=trial,
            )
            return self._traced(context) if not step.input.rerun else self._run_again(context)

    def _run_again(self, context: JobContext) -> JobResult:
        """Run the rows of changed files again, then what is new."""
        from ortdeploy.running.rerun import RerunRun  # noqa: PLC0415  only for files that changed

        step = context.step
        if self.shard is not None:
            changed = f"{step.input.rerun[0].path} has changed and its rows run again; apply without --shard first"
            return self._refused(step, OrtdeployError(changed))
        if step.retry:
            return self._traced(context)
        rerun = RerunRun(context)
        result = rerun.run()
        return result if result is not None else self._traced(replace(context, step=rerun.step))

    def _run_of(self, context: JobContext) -> "JobRun | RetryRun | ShardRun":
        if self.shard is not None:
            from ortdeploy.running.shards.shard_run import ShardRun  # noqa: PLC0415  only for shards

            return ShardRun(context, self.shard)
        if context.step.retry:
            from ortdeploy.running.retry import RetryRun  # noqa: PLC0415  only for a retry

            return RetryRun(context)
        return JobRun(context)

    def _traced(self, context: JobContext) -> JobResult:
        """Run a job within its span, if spans are sent."""
        step = context.step
        known = {"deployment": self.plan.deployment, "job": step.job, "model": step.model, "run": self.run_id}
        with traced_job(**known) as trace:
            result = self._run_of(replace(context, trace=trace)).run()
            if trace is not None:
                failed = (result.reason or "") if result.status is Status.FAILED else None
                counts = {name: getattr(result, name) for name in ("committed", "failed", "skipped")}
                trace.end(reason=failed, status=str(result.status), **counts)
        return result

    def _row_proof(self, step: RunJob, proven: ProvenRows, opened: OpenedSession) -> RowProof | None:
        """Return the proof for a session that the rows of a batch do not depend on each other."""
        if not step.row_check.counts:
            return None
        parts = _parts(step, opened)
        steps = [one for one in keep_jobs(self.plan, [step.job]).steps if not isinstance(one, RunJob)]
        models = [
            [one.sha256, encode(one.options), encode(one.run_options)] for one in steps if isinstance(one, OpenSession)
        ]
        adapters = [[one.adapter, one.sha256] for one in steps if isinstance(one, LoadAdapter)]
        candidates = [[one.candidate.name, encode(one.candidate.providers)] for one in parts]
        versions = [fact.value for fact in self.plan.facts if fact.kind == "ONNX Runtime version"]
        return RowProof(step, proven, [models, adapters, candidates, step.identity.get("pipeline"), versions])

    def _with_found_batch(self, step: RunJob, opened: OpenedModel) -> RunJob:
        """Return a job with the batch size that it began with, or that is measured on its first rows."""
        from ortdeploy.autotune.batch_size import choose_batch  # noqa: PLC0415  only where it is measured

        record = self._record(step)
        is_own = record is not None and dict(record.identity) == dict(step.identity)
        begun_with = record.batch_size if record is not None and is_own else None
        with bound(job=step.job, model=step.model):
            try:
                return choose_batch(
                    self.plan, step, opened, begun_with, self.tuning_cache, may_measure=self._may_measure(step)
                )
            except StuckTrialError:
                raise
            except OrtdeployError:  # the job itself says what is wrong with its input
                return step

    def _may_measure(self, step: RunJob) -> bool:
        """Return whether settings of a job may be measured: not where a run might end the process."""
        return self.on_run is None and not self.fatal.get(step.job)

    def _stuck_result(self, step: RunJob, error: StuckTrialError) -> JobResult:
        """Return how a job ends before it has begun, because a run on its first rows hangs."""
        first = step.input.first_row
        ending = Ending(status=Status.FAILED, reason=str(error), stuck=tuple(range(first, first + error.rows)))
        result = recorded_result(step, self._record(step), ending)
        with bound(job=step.job, model=step.model):
            log_end(result)
        return result

    def _open_next(self, session: str, failed: OpenedModel, reason: str) -> _Opened:
        """Open the next candidate after one whose provider failed, with the adapters that jobs need."""
        name = failed.sessions[0].candidate.name
        opening = failed.step
        if opening is None:
            raise AssertionError("a model's sessions are opened by a step")
        log.warning("session.failed", model=opening.model, session=name, instance=0, reason=reason)
        opened = self._open(opening, failed.remaining, (*failed.skipped, SkippedSession(session=name, reason=reason)))
        for step in self.plan.steps:
            if isinstance(step, LoadAdapter) and step.session == session:
                opened = self._load_adapter(step, opened)
        return opened


def _nothing_to_do(job: FinishedJob) -> JobResult:
    return JobResult(
        job=job.job, status=Status.NOTHING_TO_DO, output=job.output, committed=job.rows, reason=job.waiting
    )


def _with_layout(step: OpenSession, layout: PlannedThreadLayout) -> OpenSession:
    """Return a step that opens its remaining candidates with one thread layout."""
    names = {candidate.name for candidate in step.candidates}
    candidates = tuple(candidate for candidate in layout.candidates if candidate.name in names)
    return replace(step, candidates=candidates, options=layout.options, thread_layouts=(layout,))


def _parts(step: RunJob, opened: OpenedSession) -> list[OpenedSession]:
    """Return the sessions that a session of a job consists of: itself, or those of a pipeline's models."""
    if step.pipeline is None:
        return [opened]
    from ortdeploy.pipelines.component import components_of  # noqa: PLC0415  few jobs run a pipeline

    return [one.opened for one in components_of(opened.session)]


def _failed_model(step: RunJob, opened: OpenedModel) -> str:
    """Return the model whose provider has failed: the job's, or one of its pipeline's."""
    if step.pipeline is None:
        return step.session
    from ortdeploy.pipelines.compose import failed_component  # noqa: PLC0415  few jobs run a pipeline

    return failed_component(opened) or step.session


def _read_early(step: RunJob) -> Iterable[FileState]:
    """Return the input files of a job that something may read before the job looks at all of them, as it begins."""
    return chain(step.input.rerun, step.input.files if step.batching.auto or step.retry else ())


def _runners(step: RunJob, sessions: Mapping[str, _Opened]) -> OpRunners:
    """Return what runs a job's op steps. Raises OrtdeployError if one of their sessions could not be opened."""
    if not step.op_lines:
        return {}
    from ortdeploy.pipelines.op_step import op_runners  # noqa: PLC0415  few jobs have them

    opened: dict[str, OpenedSession] = {}
    for line in step.op_lines:
        model = sessions[line.name]
        if isinstance(model, OrtdeployError):
            raise model
        opened[line.name] = model.sessions[0]
    return op_runners(step.op_lines, opened)
