"""Bounds how long a run may take: asks ONNX Runtime to end one that is late, and tells whether it cannot be ended.

ONNX Runtime looks between two nodes whether it is to end a run, also within a Loop. A node that takes for ever, or a
driver that does not come back, ends with its process alone.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError, TimedOutError
from ortdeploy.durations import GRACE
from ortdeploy.runtime.protocol import Session
from ortdeploy.tensors.columns import Array


@runtime_checkable
class Endable(Protocol):
    """A session whose runs can be asked to end early."""

    def end_runs(self, *, early: bool) -> None:
        """Ask the run that goes on, and all later ones, to end; or let later ones run again."""


def end_runs(session: object, *, early: bool) -> None:
    """Ask a session's runs to end early, or let later ones run again, if it can be asked."""
    if isinstance(session, Endable):
        session.end_runs(early=early)


@runtime_checkable
class Shareable(Protocol):
    """A session that several threads call at the same time."""

    def for_caller(self) -> Session:
        """Return the same session for one of them: a call to end its runs ends no others."""


class LimitedSession:
    """A session whose runs have a limit in seconds. One thread runs, another one calls `end_late_run`.

    Each caller of a session has its own.
    """

    def __init__(self, session: Session, seconds: float) -> None:
        """Take the session, and the longest time of a run."""
        self._session = session.for_caller() if isinstance(session, Shareable) else session
        self._seconds = seconds
        self._turn = threading.Lock()
        self._began: float | None = None
        self._asked: float | None = None
        self.placement = session.placement
        self.cpu_operators = session.cpu_operators
        self.cache = session.cache

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Run once, with the session's axes. Raises TimedOutError if it ended early, else what the session raises."""
        with self._turn:
            self._began = time.perf_counter()
        try:
            return self._session.run(outputs, feeds, adapters)
        except ProviderFailedError:
            raise
        except OrtdeployError as error:
            if self._asked is None:
                raise
            raise TimedOutError(f"the run took longer than {self._seconds:g} s and was ended") from error
        finally:
            with self._turn:
                self._began = None
                if self._asked is not None:
                    self._asked = None
                    end_runs(self._session, early=False)

    def end_late_run(self) -> bool:
        """Ask a run that is late to end; return whether it was asked just now."""
        with self._turn:
            if self._began is None or self._asked is not None or self._left() > 0:
                return False
            self._asked = time.perf_counter()
            end_runs(self._session, early=True)
            return True

    @property
    def is_stuck(self) -> bool:
        """Whether a run was asked to end, and did not."""
        with self._turn:
            return self._began is not None and self._asked is not None and self._left() <= 0

    @property
    def seconds_left(self) -> float:
        """Seconds until a run is late or stuck; one that begins meanwhile cannot be so any earlier."""
        with self._turn:
            return self._seconds if self._began is None else min(self._seconds, self._left())

    def restart_timer(self) -> None:
        """Let the time of the run that goes on begin now: the whole process was stopped meanwhile."""
        with self._turn:
            now = time.perf_counter()
            self._began = None if self._began is None else now
            self._asked = None if self._asked is None else now

    def _left(self) -> float:
        """Return the seconds that are left to the run that goes on."""
        if self._asked is not None:
            return self._asked + GRACE - time.perf_counter()
        return (self._began or 0.0) + self._seconds - time.perf_counter()
