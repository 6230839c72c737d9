"""A runtime that needs no ONNX Runtime, and an observer that counts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.plan.steps import LoadAdapter, OpenSession, Plan, PlannedSession, RowCheck, RunJob
from ortdeploy.runtime.protocol import Session
from ortdeploy.tensors.columns import Array

Function = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def without_row_checks(plan: Plan) -> Plan:
    """A plan whose sessions are run for the job's batches alone, one after the other, so that a test can count them."""
    steps = (
        replace(step, row_check=RowCheck(counts=False), thread_layout=None) if isinstance(step, RunJob) else step
        for step in plan.steps
    )
    return replace(plan, steps=tuple(steps))


@dataclass
class FakeSession:
    function: Function
    batches: list[dict[str, Array]] = field(default_factory=list)
    placement: Mapping[str, int] = field(default_factory=lambda: {"CPUExecutionProvider": 1})
    cpu_operators: Sequence[str] = ("Mul",)
    cache: str | None = None

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
        self.batches.append(dict(feeds))
        results = self.function(feeds)
        return [results[name] for name in outputs]


@dataclass
class FakeRuntime:
    function: Function
    sessions: list[FakeSession] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    broken: tuple[str, ...] = ()

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        self.opened.append(candidate.name)
        if candidate.name in self.broken:
            raise OrtdeployError(f"{candidate.name} is broken")
        self.sessions.append(FakeSession(self.function))
        return self.sessions[-1]

    def load_adapter(self, step: LoadAdapter, session: Session) -> None:
        raise OrtdeployError("no adapters here")


@dataclass
class Counter:
    """An observer."""

    started: list[tuple[str, int, int | None]] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)
    ended: int = 0

    def job_started(self, job: str, done: int, total: int | None) -> None:
        self.started.append((job, done, total))

    def rows_done(self, done: int, failed: int) -> None:
        self.seen.append((done, failed))

    def job_ended(self) -> None:
        self.ended += 1


def double(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"y": feeds["x"] * np.float32(2)}


def refuse_negative(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """Refuse a whole batch for one bad row in it, as ONNX Runtime does for a bad index."""
    if (feeds["x"] < 0).any():
        raise OrtdeployError("negative")
    return double(feeds)
