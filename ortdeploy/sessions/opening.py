"""Opens a model's sessions as the plan says: the first candidate that works, or all of them, each `count` times."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, StoppedError
from ortdeploy.events import log
from ortdeploy.plan.selection import on_cpu
from ortdeploy.plan.steps import OpenSession, PlannedSession
from ortdeploy.process.memory import memory_now
from ortdeploy.process.native_output import appended_reason
from ortdeploy.providers.catalogue import CPU
from ortdeploy.runtime.protocol import Runtime, Session
from ortdeploy.sessions.placement import check_placement
from ortdeploy.tensors.columns import OpRunners

if TYPE_CHECKING:
    from ortdeploy.sessions.cpu_comparison import CpuComparison

OnNativeCall = Callable[[Mapping[str, str]], None]
"""Is told what is about to be done in native code: `model` with the `session` to open, or with the `job` to run."""


class SkippedSession(Struct, frozen=True, kw_only=True):
    """A session that was skipped, and why."""

    session: str
    reason: str


class OpenedSession(Struct, frozen=True, kw_only=True):
    """An open session: its candidate in the plan, instance number, and CPU reference. Compared by identity.

    Callers of the same session are numbered like sessions. `ops` run the op steps of a job, by their sessions.
    """

    session: Session
    candidate: PlannedSession
    instance: int = 0
    probe: "CpuComparison | None" = None
    ops: OpRunners = field(default_factory=dict)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def name(self) -> str:
        """The session's name in the plan, with its number where there are several instances."""
        several = self.candidate.count * self.candidate.callers > 1
        return f"{self.candidate.name} #{self.instance}" if several else self.candidate.name


class OpenedModel(Struct, frozen=True, kw_only=True):
    """The open sessions of a model, the remaining candidates, and the skipped sessions.

    `dispensable`: the others go on when the provider of one fails. `step` is what they were opened by, `memory` that of
    the process before and after.
    """

    sessions: tuple[OpenedSession, ...]
    remaining: tuple[PlannedSession, ...] = ()
    skipped: tuple[SkippedSession, ...] = ()
    dispensable: bool = False
    step: OpenSession | None = None
    memory: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)

    @property
    def layout(self) -> str | None:
        """The thread layout, if one was chosen."""
        return self.step.thread_layouts[0].name if self.step is not None and self.step.thread_layouts else None

    def without(self, dropped: Collection[str]) -> "OpenedModel":
        """Return the model without sessions whose provider failed, while one is left."""
        kept = tuple(session for session in self.sessions if session.name not in dropped)
        return replace(self, sessions=kept or self.sessions)


class ModelOpener(Struct, frozen=True, kw_only=True):
    """Opens sessions in a runtime. `on_native_call` is called before each, and may raise StoppedError.

    `native_text` returns what native libraries printed since the last call. Sessions of a `trial` are opened to be
    measured, many times over: they are logged as details.
    """

    runtime: Runtime
    on_native_call: OnNativeCall
    native_text: Callable[[], str]
    trial: bool = False

    def open_model(
        self, step: OpenSession, candidates: Sequence[PlannedSession], skipped: tuple[SkippedSession, ...] = ()
    ) -> OpenedModel:
        """Open what `use` asks for among the candidates. Raises OrtdeployError if none, or not all, can be opened."""
        before = memory_now()
        open_some = self._open_all if step.use == "all" else self._open_first
        opened = open_some(step, candidates, skipped)
        memory = {"before_opening": before, "opened": memory_now()}
        return replace(opened, step=step, memory=memory)

    def _open_first(
        self, step: OpenSession, candidates: Sequence[PlannedSession], skipped: tuple[SkippedSession, ...]
    ) -> OpenedModel:
        """Open the first candidate that can be opened."""
        for index, candidate in enumerate(candidates):
            try:
                sessions = tuple(self._open_candidate(step, candidate))
            except StoppedError:
                raise
            except OrtdeployError as error:
                skipped = (*skipped, _passed_over(step, candidate, error))
                continue
            return OpenedModel(sessions=sessions, remaining=tuple(candidates[index + 1 :]), skipped=skipped)
        raise OrtdeployError("; ".join(one.reason for one in skipped) or f'model "{step.model}" has no session')

    def _open_all(
        self, step: OpenSession, candidates: Sequence[PlannedSession], skipped: tuple[SkippedSession, ...]
    ) -> OpenedModel:
        """Open every candidate; one may be missing if the plan says on_unavailable: next."""
        sessions: list[OpenedSession] = []
        for candidate in candidates:
            try:
                sessions += self._open_candidate(step, candidate)
            except StoppedError:
                raise
            except OrtdeployError as error:
                skipped = (*skipped, _passed_over(step, candidate, error))
        dispensable = step.on_unavailable == "next"
        if not sessions or (skipped and not dispensable):
            raise OrtdeployError("; ".join(one.reason for one in skipped))
        return OpenedModel(sessions=tuple(sessions), skipped=skipped, dispensable=dispensable)

    def _open_candidate(self, step: OpenSession, candidate: PlannedSession) -> Iterator[OpenedSession]:
        """Open a candidate as many times as the plan says, each for its callers; the first is compared with the CPU."""
        for number in range(candidate.count):
            self.on_native_call({"model": step.model, "session": candidate.name})
            probe = None
            if number == 0 and _is_probed(step, candidate):
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  not for the CPU alone

                with ThreadPoolExecutor(1) as beside:  # while the provider compiles, the CPU session is opened
                    opening = beside.submit(self._open_probe, step)
                    session = self._open(step, candidate)
                probe = opening.result()
            else:
                session = self._open(step, candidate)
            for caller in range(candidate.callers):
                instance = number * candidate.callers + caller
                yield OpenedSession(session=session, candidate=candidate, instance=instance, probe=probe)
                probe = None

    def _open(self, step: OpenSession, candidate: PlannedSession) -> Session:
        begin = time.perf_counter()
        self.native_text()  # what went before does not explain this session
        try:
            session = self.runtime.open_session(step, candidate)
            remark = None if step.generates else check_placement(step, candidate, session)  # GenAI does not tell it
            session = self._proven(session, step, candidate)
        except OrtdeployError as error:
            raise OrtdeployError(f"{error}{appended_reason(self.native_text())}") from error
        if remark is not None:
            log.warning("session.fell_back", model=step.model, session=candidate.name, reason=remark)
        (log.debug if self.trial else log.info)(
            "session.opened",
            model=step.model,
            session=candidate.name,
            providers=[provider.name for provider in candidate.providers],
            placement=dict(session.placement),
            cache=session.cache,
            seconds=round(time.perf_counter() - begin, 3),
        )
        native_text = self.native_text()
        if native_text:
            log.debug("session.printed", model=step.model, session=candidate.name, text=native_text)
        return session

    def _proven(self, session: Session, step: OpenSession, candidate: PlannedSession) -> Session:
        """Return a session; if op steps are in its model's graph, its first run proves that they are right there."""
        if step.fusion is None:
            return session
        from ortdeploy.sessions.fused import with_proof  # noqa: PLC0415  few models have op steps in their graph

        return with_proof(session, step, candidate, self.runtime)

    def _open_probe(self, step: OpenSession) -> "CpuComparison":
        """Open the CPU session that the first batch is compared with."""
        rtol, atol = step.probe or (0.0, 0.0)
        reference = on_cpu(step)
        session = self.runtime.open_session(reference, reference.candidates[0])
        from ortdeploy.sessions.cpu_comparison import CpuComparison  # noqa: PLC0415  not for the CPU alone

        return CpuComparison(session=session, rtol=rtol, atol=atol, is_lean=step.trim, because=step.computes)


def _is_probed(step: OpenSession, candidate: PlannedSession) -> bool:
    return step.probe is not None and {provider.name for provider in candidate.providers} != {CPU}


def _passed_over(step: OpenSession, candidate: PlannedSession, error: OrtdeployError) -> SkippedSession:
    log.warning("session.refused", model=step.model, session=candidate.name, reason=str(error))
    return SkippedSession(session=candidate.name, reason=str(error))
