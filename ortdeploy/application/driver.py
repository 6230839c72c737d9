"""The driver of a job that an engine's workers run: hands out the parts, then writes the decisions into the ledger.

Everything that must not be lost is decided in the output folder. So if a driver is gone, running the plan again
replaces it, on any machine that sees the folder, even without the ledger.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.application.finish import Finish
from ortdeploy.application.part_queue import LostPartError, PartQueue
from ortdeploy.application.supervisor import ChildBugError
from ortdeploy.application.worker_process import Said
from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.events import log
from ortdeploy.jobs.begin_shared_plan import Beginning
from ortdeploy.jobs.ending import Ending
from ortdeploy.jobs.environment_check import (
    compare_with_first,
    facts_of_this_worker,
    has_other_processor,
    processor_of,
    why_refused,
)
from ortdeploy.jobs.error_budget import ErrorBudget
from ortdeploy.jobs.job_report import recorded_result
from ortdeploy.jobs.shard_run import why_not_shared
from ortdeploy.jobs.shared_plan import decisions_of, first_number, standing_record
from ortdeploy.ledger.opening import copy_of_ledger, open_ledger
from ortdeploy.parts.commit_log import ClosedError, CommitLog
from ortdeploy.parts.committed import check_inputs
from ortdeploy.plan.part_table import PartTable, PlannedPart, part_table
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.results.results import JobResult, Observer, Status

_TICK = 1.0
"""Seconds between two looks for idle workers, late workers and a request to stop, if no answer comes earlier."""

_NOBODY = 600.0
"""Seconds without any worker, after which the job fails."""

_MOST_REASONS = 3


class Answer(Struct, frozen=True, kw_only=True):
    """The answer of a worker. `part` is the part that it was asked for; None if it was asked to get ready.

    `said` is its own answer; None if the answer is lost, then `reason` says how. A worker that is `gone` does not come
    back; otherwise the engine starts it again, and it must get ready anew.
    """

    worker: int
    part: int | None
    said: Said | None = None
    reason: str = ""
    gone: bool = False


class WorkerPool(Protocol):
    """The workers of an engine, by number. Each request is answered once, or lost with the worker."""

    @property
    def workers(self) -> Sequence[int]:
        """The numbers of all workers that were asked for."""

    def begin(self, worker: int) -> None:
        """Ask a worker to get ready."""

    def make(self, worker: int, part: int) -> None:
        """Ask a worker for a part."""

    def answers(self, seconds: float) -> Sequence[Answer]:
        """Return the answers that have come; if there are none, wait at most this number of seconds for one."""


class Driver(Struct, frozen=True, kw_only=True):
    """One job of one plan. `hire` starts the workers, which end with its block."""

    plan: Plan
    step: RunJob
    state_dir: Path
    run_id: str
    hire: Callable[[], AbstractContextManager[WorkerPool]]
    observer: Observer
    stop: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic

    def run(self) -> JobResult:
        """Have the parts made, and finish the job. Raises ChildBugError, and nothing that a user can cause."""
        begin = self.clock()
        try:
            cause = self._work()
        except ClosedError:
            cause = Ending(status=Status.DONE)
        except (OrtdeployError, OSError) as error:
            said = failure_at(self._folder, error)
            log.error("job.failed", committed=0, failed=0, skipped=0, kept=0, seconds=0.0, reason=said)
            return recorded_result(self.step, None, Ending(status=Status.FAILED, reason=said))
        with open_ledger(self.state_dir) as ledger:
            finish = Finish(plan=self.plan, step=self.step, ledger=ledger, run_id=self.run_id, cause=cause)
            return replace(finish.run(), seconds=self.clock() - begin)

    @property
    def _folder(self) -> Path:
        return Path(self.plan.folder) / self.step.output.path

    def _work(self) -> Ending:
        """Take the output, and have its remaining parts made. Raises OrtdeployError, OSError if nothing has begun."""
        why_not = why_not_shared(self.step)
        if why_not is not None:
            raise OrtdeployError(f"{self.step.output.shown} cannot be made by several workers: {why_not}")
        check_inputs(self.step, self.plan.folder)
        with copy_of_ledger(self.state_dir) as ledger:
            record = ledger.output(ledger.key(self._folder))
        table = part_table(self.step, first_number(record, self.step))
        decisions = decisions_of(self.plan, self.step, record, self._folder)
        ours = facts_of_this_worker(self.plan, self.step)
        beginning = Beginning(
            plan=self.plan, step=self.step, state_dir=self.state_dir, decisions=decisions, is_holder=True
        )
        beginning.run(partial(compare_with_first, decisions, ours, "the driver"))
        record = standing_record(record, self.step, table, decisions)
        known = set() if record is None else {part.number for part in record.parts}
        left = [part for part in table if part.number not in known]
        handing = _Handing(self, table, ours, *_undecided(decisions, left))
        self.observer.job_started(self.step.job, handing.rows, sum(len(part.rows) for part in table))
        try:
            return handing.run()
        except KeyboardInterrupt:
            return Ending(status=Status.INTERRUPTED, reason="the run was stopped at once")
        finally:
            self.observer.job_ended()


def _undecided(decisions: CommitLog, parts: Iterable[PlannedPart]) -> tuple[list[int], int, int]:
    """Return the parts that are not decided, and how many rows of the others are done and failed."""
    left, rows, failed = [], 0, 0
    for part, receipt in decisions.all_rolled_forward(parts):
        if receipt is None:
            left.append(part.number)
        else:
            rows, failed = rows + receipt.part.rows, failed + receipt.part.failed
    return left, rows, failed


class _Handing:
    """Hands out the parts of one job that are `left`; of the others, `rows` are done and `failed` of them failed."""

    def __init__(
        self, drive: Driver, table: PartTable, ours: Mapping[str, Any], left: Sequence[int], rows: int, failed: int
    ) -> None:
        self.drive, self.table, self._ours = drive, table, ours
        self.queue = PartQueue(left)
        self.rows, self.failed = rows, failed
        self.ending: Ending | None = None
        self._names: dict[int, str] = {}
        self._present: set[int] = set()
        self._asked: set[int] = set()
        self._away: dict[int, float] = {}
        self._busy: set[int] = set()
        self._why_gone: list[str] = []
        self._told_late: set[tuple[int, int]] = set()
        self._seen = drive.clock()

    def run(self) -> Ending:
        """Hand out parts until all are decided, or something ends the job. Raises OrtdeployError, ChildBugError."""
        if not self.queue.left:
            return Ending(status=Status.DONE)
        with self.drive.hire() as pool:
            for worker in pool.workers:
                self._ask(pool, worker)
            self._seen = self.drive.clock()
            while self.queue.left and (self.ending is None or self._busy):
                self._look(pool)
                self._give(pool)
                for answer in pool.answers(_TICK):
                    self._take(answer)
        return self.ending or Ending(status=Status.DONE)

    def _ask(self, pool: WorkerPool, worker: int) -> None:
        self._asked.add(worker)
        pool.begin(worker)

    def _look(self, pool: WorkerPool) -> None:
        """End the job if that was asked for, or if no worker is left; log the workers that are late."""
        clock = self.drive.clock()
        if self.drive.stop():
            self._end(Ending(status=Status.INTERRUPTED, reason="the run was asked to stop"))
        for worker, part, seconds in self.queue.overdue(clock):
            self._busy.discard(worker)  # nobody waits for it when the job ends
            if (worker, part) not in self._told_late:
                self._told_late.add((worker, part))
                rows = self.table.part(part)
                log.warning(
                    "worker.late", worker=self._name(worker), part=part, start=rows.start, end=rows.end - 1,
                    seconds=round(seconds),
                )  # fmt: skip
        for worker in [one for one, since in self._away.items() if clock - since >= _TICK]:
            del self._away[worker]
            self._ask(pool, worker)
        if self._present:
            self._seen = clock
        elif not (self._asked or self._away):
            self._end(Ending(status=Status.FAILED, reason=f"no worker is left: {self._reasons()}"))
        elif clock - self._seen > _NOBODY:
            wait = f"no worker has been ready for {_NOBODY / 60:.0f} minutes. Has the cluster room for them?"
            self._end(Ending(status=Status.FAILED, reason=wait))

    def _give(self, pool: WorkerPool) -> None:
        """Give parts to the workers that may have more."""
        if self.ending is not None:
            return
        for worker in self._present:
            while (part := self.queue.give(worker, self.drive.clock())) is not None:
                pool.make(worker, part)

    def _end(self, ending: Ending) -> None:
        """Hand out nothing more; wait for the parts that workers are making."""
        if self.ending is None:
            self.ending = ending
            self._busy = {worker for worker in self._present if not self.queue.is_idle(worker)}

    def _take(self, answer: Answer) -> None:
        """Note an answer."""
        self._busy.discard(answer.worker)
        try:
            if answer.said is None:
                self._lose(answer)
            else:
                self._relay(answer.worker, answer.said.get("log", ()))
                self._note(answer.worker, answer.part, answer.said)
        except LostPartError as error:
            self._end(Ending(status=Status.FAILED, reason=f"{error}. {self._rows_of(error)}"))

    def _note(self, worker: int, part: int | None, said: Said) -> None:
        clock, reason = self.drive.clock(), str(said.get("reason"))
        match said["kind"]:
            case "ready":
                self._meet(worker, said["facts"])
            case "decided":
                self._count(worker, said, clock)
            case "failed" if part is not None:
                log.warning("part.failed", part=part, worker=self._name(worker), reason=reason)
                self.queue.failed(worker, part, f"{self._name(worker)}: {reason}", clock)
            case "paused":
                self._end(Ending(status=Status.PAUSED, reason=reason))
            case "closed":
                self._end(Ending(status=Status.DONE))
                self._busy.clear()
            case "refused":
                self._refuse(worker, reason)
            case _:
                raise ChildBugError(reason)

    def _count(self, worker: int, said: Said, clock: float) -> None:
        """Note a decided part. Its rows count once, whichever worker made it."""
        if not self.queue.decided(worker, said["part"], clock):
            return
        self.rows, self.failed = self.rows + said["rows"], self.failed + said["failed"]
        self.drive.observer.rows_done(self.rows, self.failed)
        try:
            ErrorBudget(self.drive.step, self.failed).judge(self.table.end)
        except OrtdeployError as error:
            self._end(Ending(status=Status.FAILED, reason=str(error)))

    def _meet(self, worker: int, facts: Mapping[str, Any] | None) -> None:
        """Accept a worker that is ready, if its versions are those of this machine."""
        self._asked.discard(worker)
        if facts is not None:
            self._names[worker] = f"worker {worker} on {facts['host']}"
            differs = why_refused(self._ours, facts)
            if differs is not None:
                self._refuse(worker, differs)
                return
            log.info("worker.ready", worker=self._name(worker))
            if has_other_processor(self._ours, facts):
                log.warning(
                    "worker.differs", worker=self._name(worker), processor=processor_of(facts),
                    first=processor_of(self._ours),
                )  # fmt: skip
        self._present.add(worker)

    def _refuse(self, worker: int, reason: str) -> None:
        """Do without a worker that cannot work on this plan."""
        log.warning("worker.refused", worker=self._name(worker), reason=reason)
        self._forget(worker, f"{self._name(worker)}: {reason}")
        self.queue.lost(worker, None)

    def _lose(self, answer: Answer) -> None:
        """Take back the parts of a lost worker; if the engine starts it again, ask it to get ready."""
        worker, was_there = answer.worker, answer.worker in self._present
        if answer.gone:
            self._forget(worker, f"{self._name(worker)}: {answer.reason}")
        else:
            self._present.discard(worker)
            self._asked.discard(worker)
            self._away[worker] = self.drive.clock()
        if was_there or answer.gone:
            log.warning("worker.lost", worker=self._name(worker), gone=answer.gone, reason=answer.reason)
        self.queue.lost(worker, f"{self._name(worker)}: {answer.reason}")

    def _forget(self, worker: int, reason: str) -> None:
        self._present.discard(worker)
        self._asked.discard(worker)
        self._away.pop(worker, None)
        self._why_gone.append(reason)

    def _relay(self, worker: int, lines: Iterable[str]) -> None:
        """Log the lines that a worker has logged."""
        for line in lines:
            fields = json.loads(line)
            level, event = fields.pop("level"), fields.pop("event")
            getattr(log, level)(event, **{**fields, "worker": self._name(worker)})

    def _name(self, worker: int) -> str:
        return self._names.get(worker, f"worker {worker}")

    def _reasons(self) -> str:
        more = len(self._why_gone) - _MOST_REASONS
        return "; ".join([*self._why_gone[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else [])])

    def _rows_of(self, error: LostPartError) -> str:
        part = self.table.part(error.part)
        return f"It has the rows {part.start} to {part.end - 1}"
