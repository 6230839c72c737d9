"""Bounds how long a run may take: asks ONNX Runtime to end one that is late, and tells whether it cannot be ended.

ONNX Runtime looks between two nodes whether it is to end a run, also within a Loop. A node that takes for ever, or a
driver that does not come back, ends with its process alone.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError, TimedOutError
from ortdeploy.runtime.protocol import Session
from ortdeploy.tensors.columns import Array

GRACE = 5.0
"""Seconds in which a run that was asked to end may do so."""


@runtime_checkable
class Endable(Protocol):
    """A session whose runs can be asked to end early."""

    def end_runs(self, *, early: bool) -> None:
        """Ask the run that goes on, and all later ones, to end; or let later ones run again."""


def end_runs(session: object, *, early: bool) -> None:
    """Ask a session's runs to end early, or let later ones run again, if it can be asked."""
    if isinstance(session, Endable):
        session.end_runs(early=early)


class _SharedRuns:
    """The runs of all callers of one session: they share its run options, so a call to end one of them ends all."""

    def __init__(self, session: Session) -> None:
        """Take the session; as long as it is held, no other one has its id."""
        self._session = session
        self._changed = threading.Condition()
        self._ending = self._calls = 0

    def end(self) -> None:
        """Ask the runs that go on to end, and those that begin, until `has_ended` was called as often."""
        with self._changed:
            self._ending += 1
            self._calls += 1
            end_runs(self._session, early=True)

    def has_ended(self) -> None:
        """Say that a run which was asked to end has done so; if it was the last one, others may run again."""
        with self._changed:
            self._ending -= 1
            if not self._ending:
                end_runs(self._session, early=False)
                self._changed.notify_all()

    def wait_until_free(self) -> int:
        """Wait until a run may begin, and return how often runs were asked to end so far."""
        with self._changed:
            self._changed.wait_for(lambda: not self._ending)
            return self._calls

    def were_asked(self, since: int) -> bool:
        """Return whether runs were asked to end since `wait_until_free` returned a number."""
        with self._changed:
            return self._calls > since


_KNOWN: WeakValueDictionary[int, _SharedRuns] = WeakValueDictionary()
_KNOWING = threading.Lock()


def _shared_runs(session: Session) -> _SharedRuns:
    """Return what the callers of a session share."""
    with _KNOWING:
        return _KNOWN.setdefault(id(session), _SharedRuns(session))


class LimitedSession:
    """A session whose runs have a limit in seconds. One thread runs, another one calls `end_late_run`.

    Each caller of a session has its own. A run that ended because another caller's was late runs again.
    """

    def __init__(self, session: Session, seconds: float) -> None:
        """Take the session, and the longest time of a run."""
        self._session = session
        self._shared = _shared_runs(session)
        self._seconds = seconds
        self._turn = threading.Lock()
        self._began: float | None = None
        self._asked: float | None = None
        self.placement = session.placement
        self.cpu_operators = session.cpu_operators
        self.cache = session.cache

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Run once, with the session's axes. Raises TimedOutError if it ended early, else what the session raises."""
        while True:
            calls = self._shared.wait_until_free()
            with self._turn:
                self._began = time.perf_counter()
            try:
                return self._session.run(outputs, feeds, adapters)
            except ProviderFailedError:
                raise
            except OrtdeployError as error:
                if self._asked is not None:
                    raise TimedOutError(f"the run took longer than {self._seconds:g} s and was ended") from error
                if not self._shared.were_asked(since=calls):
                    raise
            finally:
                with self._turn:
                    self._began = None
                    if self._asked is not None:
                        self._asked = None
                        self._shared.has_ended()

    def end_late_run(self) -> bool:
        """Ask a run that is late to end; return whether it was asked just now."""
        with self._turn:
            if self._began is None or self._asked is not None or self._left() > 0:
                return False
            self._asked = time.perf_counter()
            self._shared.end()
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

    def begin_anew(self) -> None:
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
