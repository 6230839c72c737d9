"""A pool of workers in this process: each part is made for real when its answer is asked for, and faults are scripted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ortdeploy.application.driver import Answer, Driver
from ortdeploy.jobs.environment_check import facts_of_this_worker
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.opening import copy_of_ledger
from ortdeploy.parts.assigned_parts import AssignedParts
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import JobResult
from support.fakes import Counter, FakeRuntime, double

Fault = Callable[[int, int | None], Answer | None]
"""Returns what comes back of a worker that was asked for a part, or to get ready, in place of the answer."""


def no_fault(_worker: int, _part: int | None) -> Answer | None:
    return None


class FakeCrew:
    def __init__(self, folder: Path, plan: Plan, count: int, model: Any = double, fault: Fault = no_fault) -> None:
        self.workers: Sequence[int] = range(count)
        self.made: list[tuple[int, int]] = []
        self._folder, self._plan, self._model, self._fault = folder, plan, model, fault
        self._asked: list[tuple[int, int | None]] = []

    def begin(self, worker: int) -> None:
        self._asked.append((worker, None))

    def make(self, worker: int, part: int) -> None:
        self._asked.append((worker, part))

    def answers(self, _seconds: float) -> Sequence[Answer]:
        """One answer at a time, in the order of asking."""
        if not self._asked:
            return []
        worker, part = self._asked.pop(0)
        answer = self._fault(worker, part) or self.answer_of(worker, part)
        if answer.said is None:
            self._asked = [one for one in self._asked if one[0] != worker]
        return [answer]

    @contextmanager
    def hired(self) -> Iterator["FakeCrew"]:
        yield self

    def answer_of(self, worker: int, part: int | None) -> Answer:
        """What comes back where nothing goes wrong; the part is made."""
        return Answer(worker=worker, part=part, said=self._said(worker, part))

    def _said(self, worker: int, part: int | None) -> dict[str, Any]:
        if part is None:
            return {"kind": "ready", "facts": facts_of_this_worker(self._plan, *run_jobs(self._plan))}
        said: list[dict[str, Any]] = []

        def answer(one: Any, receipt: Any, _made_here: Any) -> None:
            self.made.append((worker, one.number))
            said.append({"part": one.number, "rows": receipt.part.rows, "failed": receipt.part.failed})

        with copy_of_ledger(self._folder / ".ortdeploy") as ledger:
            execution = Execution(
                plan=self._plan,
                run_id="s1",
                runtime=FakeRuntime(self._model),
                ledger=ledger,
                observer=Counter(),
                stop=lambda: False,
                shard=AssignedParts(f"fake {worker}", iter([part]), answer=answer),
            )
            (result,) = execution.run()
        return {"kind": "decided", **said[0]} if said else {"kind": "failed", "reason": result.reason}


class Clock:
    """Seconds, one more at each look."""

    def __init__(self, step: float = 1.0) -> None:
        self._now, self._step = 0.0, step

    def __call__(self) -> float:
        self._now += self._step
        return self._now


def drive(
    folder: Path,
    plan: Plan,
    pool: FakeCrew,
    *,
    stop: Callable[[], bool] = lambda: False,
    observer: Counter | None = None,
    clock: Clock | None = None,
) -> JobResult:
    (step,) = run_jobs(plan)
    return Driver(
        plan=plan,
        step=step,
        state_dir=folder / ".ortdeploy",
        run_id="d1",
        hire=pool.hired,
        observer=observer or Counter(),
        stop=stop,
        clock=clock or Clock(),
    ).run()
