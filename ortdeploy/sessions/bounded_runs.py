"""Bounds the runs with which settings are measured before a job, as `run_timeout` bounds the runs of the job."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.durations import LATE
from ortdeploy.events import log
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.run_limit import LimitedSession

if TYPE_CHECKING:
    from concurrent.futures import Future

_SHORTEST = 0.01

_T = TypeVar("_T")


class HungMeasurementError(OrtdeployError):
    """The run of a trial took too long, and cannot be ended but with its process. It ran the first `rows` rows."""

    def __init__(self, rows: int) -> None:
        """Take how many rows ran."""
        super().__init__("a run with which settings are measured took longer than run_timeout and could not be ended")
        self.rows = rows


class Trials:
    """Trials of a job whose runs may take at most this number of `seconds`; None: any time.

    `rows` are as many of the job's first rows as the next runs take.
    """

    def __init__(self, seconds: float | None) -> None:
        """Take the longest time of a run."""
        self._seconds = seconds
        self._turn = threading.Lock()
        self._bounded: list[LimitedSession] = []
        self.rows = 0

    @contextmanager
    def bounded(self, session: Session) -> Iterator[Session]:
        """Yield a session that raises TimedOutError if a run takes too long, while `watch` goes on."""
        if self._seconds is None:
            yield session
            return
        limited = LimitedSession(session, self._seconds)
        with self._turn:
            self._bounded.append(limited)
        try:
            yield limited
        finally:
            with self._turn:
                self._bounded.remove(limited)

    def watch(self, work: Callable[[], _T]) -> _T:
        """Do work that runs bounded sessions, in a thread of its own, and return what it returns.

        Raises what it raises, and HungMeasurementError if a run was asked to end and does not.
        """
        if self._seconds is None:
            return work()
        from concurrent.futures import Future  # noqa: PLC0415  few jobs have trials

        done: Future[_T] = Future()
        arguments = (_settle, done, work)
        threading.Thread(target=copy_context().run, args=arguments, name="ortdeploy-trials", daemon=True).start()
        while not self._is_done(done):
            for one in self._all():
                if one.end_late_run():
                    log.warning("run.late_trial", rows=self.rows, limit=self._seconds)
                elif one.is_stuck:
                    raise HungMeasurementError(self.rows)
        return done.result()

    def _is_done(self, done: "Future[_T]") -> bool:
        """Wait until the work is done, or a run may be late; return whether it is done.

        A thread that wakes up much later was stopped meanwhile with all others (SIGSTOP, a frozen container).
        """
        from concurrent.futures import wait  # noqa: PLC0415  as above

        seconds, begin = max(self._seconds_left(), _SHORTEST), time.perf_counter()
        if wait([done], seconds).done:
            return True
        if time.perf_counter() - begin > seconds + LATE:
            for one in self._all():
                one.restart_timer()
        return False

    def _seconds_left(self) -> float:
        return min((one.seconds_left for one in self._all()), default=self._seconds or 0.0)

    def _all(self) -> list[LimitedSession]:
        with self._turn:
            return [*self._bounded]


def _settle(done: "Future[_T]", work: Callable[[], _T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001  the thread that waits raises it
        done.set_exception(error)
