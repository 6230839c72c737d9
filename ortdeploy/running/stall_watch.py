"""Finds out whether a job's threads hang: no batch was completed for longer than its progress_timeout."""

import time
from collections.abc import Callable, Sequence
from queue import Empty
from typing import TypeVar

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.running.member import Member

LATE = 1.0
"""Seconds after its time at which a thread has not merely waited for a processor."""

_T = TypeVar("_T")


class StalledError(OrtdeployError):
    """No batch was completed for longer than the job allows."""


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

    def patiently(self, wait: "Callable[[float | None], _T]") -> _T:
        """Wait until something may hang. Raises what `wait` raises when the time is over.

        A thread that wakes up much later was stopped meanwhile with all others (SIGSTOP, a frozen container): nothing
        hangs yet.
        """
        seconds, begin = self._patience(), time.perf_counter()
        try:
            return wait(seconds)
        except (Empty, TimeoutError):
            now = time.perf_counter()
            if seconds is not None and now - begin > seconds + LATE:
                self._progressed = now
            raise

    @property
    def is_stalled(self) -> bool:
        """Whether no batch was completed for too long."""
        return self._limit is not None and time.perf_counter() - self._last_sign() >= self._limit

    def check(self) -> None:
        """Raise StalledError if no batch was completed for too long."""
        if self.is_stalled:
            raise StalledError(f"no batch was completed for {self._limit:g} s: {self.describe()}")

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

    def _patience(self) -> float | None:
        """Return the seconds to wait until something may hang."""
        return None if self._limit is None else max(self._last_sign() + self._limit - time.perf_counter(), 0.01)

    def _last_sign(self) -> float:
        return max(self._progressed, *(member.rows.progressed for member in self._members))
