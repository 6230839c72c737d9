"""Detects that a job's threads hang: no batch was completed for too long, or a run takes too long."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from queue import Empty
from typing import TypeVar

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.durations import GRACE, LATE
from ortdeploy.events import log
from ortdeploy.process.held_process import ended_if_held
from ortdeploy.streaming.member import Member

_SHORTEST = 0.01
_LONGEST = 1.0
"""Seconds of one wait. A signal that comes just before a wait does not end it, and its handler is called afterwards."""

_T = TypeVar("_T")


class StalledError(OrtdeployError):
    """No batch was completed for longer than the job allows."""


class StuckRunError(OrtdeployError):
    """A run took longer than the job allows, and only the end of its process ends it. `rows` are the job's."""

    def __init__(self, message: str, rows: Sequence[int]) -> None:
        """Take the message, and the numbers of the rows that ran."""
        super().__init__(message)
        self.rows = tuple(rows)


class StallWatch:
    """Watches the threads of one job. `reading` is the time when the reader began its current block."""

    def __init__(self, limit: float | None, members: Sequence[Member]) -> None:
        """Take the seconds without progress that the job allows, if there is a limit."""
        self._limit = limit
        self._members = members
        self._progressed = time.perf_counter()
        self.reading: float | None = None

    def progress(self) -> None:
        """Note progress."""
        self._progressed = time.perf_counter()

    def patiently(self, wait: "Callable[[float], _T]") -> _T:
        """Wait until something may hang, or a signal may have been missed. Raises what `wait` raises then.

        If a thread wakes up much later than it should, the whole process was stopped (SIGSTOP, a frozen container), and
        nothing hangs yet. A library that lets no thread wake up is ended with its process, if another would continue.
        """
        patience, begin = self._patience(), time.perf_counter()
        try:
            with ended_if_held(patience + GRACE) if math.isfinite(patience) else nullcontext():
                return wait(min(patience, _LONGEST))
        except (Empty, TimeoutError):
            now = time.perf_counter()
            if now - begin > patience + LATE:
                self._progressed = now
                for member in self._members:
                    member.rows.runs.restart_timer()
            raise

    @property
    def is_stalled(self) -> bool:
        """Whether no batch was completed for too long."""
        return self._limit is not None and time.perf_counter() - self._last_sign() >= self._limit

    def check(self) -> None:
        """Raise StalledError if no batch was completed for too long."""
        if self.is_stalled:
            raise StalledError(f"no batch was completed for {self._limit:g} s: {self.describe()}")

    def end_late_runs(self) -> None:
        """Ask runs that take too long to end. Raises StuckRunError if one was asked before and has not ended."""
        for member in self._members:
            rows = member.running
            if rows and member.rows.runs.end_late_run():
                log.warning("run.late", session=member.name, first=rows[0], last=rows[-1])
            elif rows and member.rows.runs.is_stuck:
                where = f"session {member.name} with rows {rows[0]} to {rows[-1]}"
                raise StuckRunError(f"a run of {where} took longer than run_timeout and could not be ended", rows)

    def describe(self) -> str:
        """Describe what every working thread does."""
        now = time.perf_counter()
        doing = [
            f"session {member.name} runs rows {block.start} to {block.start + block.count - 1}"
            for member in self._members
            if member.failure is None and member.current is not None
            for block in [member.current.prepared.block]
        ]
        if self.reading is not None:
            doing.append(f"the input is read for {now - self.reading:.0f} s")
        return "; ".join(doing) or "nothing is on its way"

    def _patience(self) -> float:
        """Return the seconds until something may hang; infinity if nothing has a limit."""
        stall = None if self._limit is None else self._last_sign() + self._limit - time.perf_counter()
        seconds = [stall, *(member.rows.runs.seconds_left for member in self._members)]
        return min((max(one, _SHORTEST) for one in seconds if one is not None), default=math.inf)

    def _last_sign(self) -> float:
        return max(self._progressed, *(member.rows.progressed for member in self._members))
