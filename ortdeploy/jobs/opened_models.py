"""The open sessions of a plan's models while it runs, with adapters: from one candidate to the next."""

from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import bound, log
from ortdeploy.jobs.pinned_files import Files
from ortdeploy.plan.steps import LoadAdapter, OpenSession, Plan, PlannedSession, PlannedThreadLayout, RunJob
from ortdeploy.plan.thread_layout import ThreadLayout
from ortdeploy.process.cores import core_count
from ortdeploy.process.heap import spare_memory
from ortdeploy.process.memory import memory_of_the_group, trim_memory
from ortdeploy.process.memory_limit import MemoryBound
from ortdeploy.providers.options import without_cpu_arena
from ortdeploy.results.results import JobResult
from ortdeploy.runtime.protocol import Runtime
from ortdeploy.sessions.opening import ModelOpener, OnNativeCall, OpenedModel, OpenedSession, SkippedSession
from ortdeploy.tensors.columns import OpRunners

Opened = OpenedModel | OrtdeployError
"""A model's open sessions, or why there is none."""


class OpenedModels(Struct, frozen=True, kw_only=True):
    """The sessions of a plan's models by the names of its steps; what else is here is what it takes to open them."""

    plan: Plan
    runtime: Runtime
    files: Files
    on_native_call: OnNativeCall
    native_text: Callable[[], str]
    by_name: dict[str, Opened] = field(default_factory=dict)

    def open(
        self,
        step: OpenSession,
        candidates: Sequence[PlannedSession],
        skipped: tuple[SkippedSession, ...] = (),
        *,
        trial: bool = False,
    ) -> Opened:
        """Return a model's open sessions, or why there is none."""
        opener = ModelOpener(
            runtime=self.runtime, on_native_call=self.on_native_call, native_text=self.native_text, trial=trial
        )
        limit = self.memory_limit(step)
        try:
            with MemoryBound(limit, core_count(), mapped=sum(file.size for file in step.files[1:])):
                return opener.open_model(self._without_arena(step, limit, trial=trial), candidates, skipped)
        except OrtdeployError as error:
            return error
        finally:
            if step.trim:
                trim_memory()

    def load_adapter(self, step: LoadAdapter) -> None:
        """Load an adapter into the sessions of its model."""
        self.by_name[step.session] = self._with_adapter(step, self.by_name[step.session])

    def open_layout(self, step: OpenSession, layout: PlannedThreadLayout) -> OpenedModel:
        """Open a model's sessions with one thread layout, to measure it. Raises OrtdeployError."""
        laid_out = replace(with_layout(step, layout), probe=None)
        with bound(trial=layout.name):
            opened = self._with_adapters(self.open(laid_out, laid_out.candidates, trial=True), step, trial=True)
        if isinstance(opened, OrtdeployError):
            raise opened
        return opened

    def open_again(self, step: OpenSession) -> None:
        """Open a model's sessions by another step in place of those that are open, whose memory is free before."""
        self.by_name.pop(step.session, None)
        self.by_name[step.session] = self._with_adapters(self.open(step, step.candidates), step)

    def of_job(self, step: RunJob) -> Opened:
        """Return the sessions of a job: its model's, or those that a pipeline makes of its models'."""
        try:
            ops = self.op_runners(step)
        except OrtdeployError as error:
            return error
        opened = self._composed(step)
        if isinstance(opened, OrtdeployError) or not ops:
            return opened
        return replace(opened, sessions=tuple(replace(one, ops=ops) for one in opened.sessions))

    def op_runners(self, step: RunJob) -> OpRunners:
        """Return what runs a job's op steps. Raises OrtdeployError if one of their sessions could not be opened."""
        if not step.op_lines:
            return {}
        from ortdeploy.pipelines.op_step import op_runners  # noqa: PLC0415  few jobs have them

        opened: dict[str, OpenedSession] = {}
        for line in step.op_lines:
            model = self.by_name[line.name]
            if isinstance(model, OrtdeployError):
                raise model
            opened[line.name] = model.sessions[0]
        return op_runners(step.op_lines, opened)

    def go_on(self, step: RunJob, opened: OpenedModel, result: JobResult) -> bool:
        """Return whether a job goes on with the next candidate of a model, which is opened if its provider failed.

        If it does not, sessions that the job has lost are left out for the jobs that follow.
        """
        name = _failed_model(step, opened)
        failed = self.by_name.get(name)
        if result.provider_failed and isinstance(failed, OpenedModel) and failed.remaining:
            self.by_name[name] = self._open_next(failed, result.reason or "")
            return True
        if step.pipeline is None:
            self.by_name[name] = opened.without(result.dropped)
        return False

    def jobs_of(self, opening: OpenSession) -> list[RunJob]:
        """Return the jobs that run on these sessions."""
        return [step for step in self.plan.steps if isinstance(step, RunJob) and opening.session in step.sessions]

    def memory_limit(self, opening: OpenSession) -> int | None:
        """Return the smallest memory limit of these sessions' jobs and of this process's control group."""
        limits = [*(step.limits.memory for step in self.jobs_of(opening)), memory_of_the_group()]
        return min((limit for limit in limits if limit is not None), default=None)

    def _composed(self, step: RunJob) -> Opened:
        if step.pipeline is None:
            return self.by_name[step.session]
        opened = {name: self.by_name[name] for name in step.pipeline.sessions}
        refused = next((one for one in opened.values() if isinstance(one, OrtdeployError)), None)
        if refused is not None:
            return refused
        from ortdeploy.pipelines.compose import compose  # noqa: PLC0415  few jobs run a pipeline

        try:
            with self.files.composing(step.pipeline) as pipeline:
                return compose(pipeline, {k: v for k, v in opened.items() if isinstance(v, OpenedModel)})
        except OrtdeployError as error:
            return error

    def _without_arena(self, opening: OpenSession, limit: int | None, *, trial: bool) -> OpenSession:
        """Return the step without the CPU arena if a job may reach its limit, unless the manifest sets the arena.

        An arena that cannot grow takes nine tenths of the room, and again, until something fits: what is left is too
        little for its own books, which onnxruntime 1.31.1 then leaves broken. It aborts the process at a later run.
        """
        own_words = "enable_cpu_mem_arena" in opening.options or opening.shared_arena is not None
        if limit is None or own_words:
            return opening
        forecasts = (step.limits.forecast for step in self.jobs_of(opening))
        layout = opening.thread_layouts[0].name if opening.thread_layouts else None
        if all(one and one.has_room_for_arena(limit, layout) for one in forecasts):
            return opening
        (log.debug if trial else log.info)(
            "session.without_arena", model=opening.model, session=opening.session, limit=limit
        )
        spare_memory()
        without = {"enable_cpu_mem_arena": False, "enable_mem_pattern": False}
        shrinking = without_cpu_arena(opening.run_options)
        return replace(opening, options={**without, **opening.options}, run_options=shrinking)

    def _with_adapters(self, opened: Opened, opening: OpenSession, *, trial: bool = False) -> Opened:
        """Return a model with the adapters of its sessions, or why one cannot be loaded."""
        for step in self.plan.steps:
            if isinstance(step, LoadAdapter) and step.session == opening.session:
                opened = self._with_adapter(step, opened, trial=trial)
        return opened

    def _with_adapter(self, step: LoadAdapter, opened: Opened, *, trial: bool = False) -> Opened:
        """Return a model with an adapter in each of its sessions, or why it cannot be loaded."""
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

    def _open_next(self, failed: OpenedModel, reason: str) -> Opened:
        """Open the next candidate after one whose provider failed, with the adapters that jobs need."""
        name = failed.sessions[0].candidate.name
        opening = failed.step
        if opening is None:
            raise AssertionError("a model's sessions are opened by a step")
        log.warning("session.failed", model=opening.model, session=name, instance=0, reason=reason)
        skipped = (*failed.skipped, SkippedSession(session=name, reason=reason))
        return self._with_adapters(self.open(opening, failed.remaining, skipped), opening)


def as_planned(step: OpenSession, layout: ThreadLayout, callers: int, limit: int | None) -> PlannedThreadLayout:
    """Return a layout that its name alone tells, for a model on the CPU provider; `limit` bounds its threads.

    With all threads, its sessions are those of the step.
    """
    candidates = tuple(replace(one, count=layout.sessions, callers=callers) for one in step.candidates)
    threads = {"intra_op_num_threads": min(layout.threads, limit or layout.threads)} if layout.threads else {}
    return PlannedThreadLayout(name=layout.name, candidates=candidates, options={**step.options, **threads})


def with_one_thread(step: OpenSession) -> OpenSession:
    """Return a step whose sessions have one thread."""
    return replace(step, options={**step.options, "intra_op_num_threads": 1})


def with_layout(step: OpenSession, layout: PlannedThreadLayout) -> OpenSession:
    """Return a step that opens its remaining candidates with one thread layout."""
    names = {candidate.name for candidate in step.candidates}
    candidates = tuple(candidate for candidate in layout.candidates if candidate.name in names)
    return replace(step, candidates=candidates, options=layout.options, thread_layouts=(layout,))


def _failed_model(step: RunJob, opened: OpenedModel) -> str:
    """Return the model whose provider has failed: the job's, or one of its pipeline's."""
    if step.pipeline is None:
        return step.session
    from ortdeploy.pipelines.compose import failed_component  # noqa: PLC0415  few jobs run a pipeline

    return failed_component(opened) or step.session
