"""Ends a process that a library holds: while native code keeps Python's lock, no thread of Python can end anything.

The system can: its timers need no lock. They count processor time, which stands still while the process is stopped.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ortdeploy.process.cores import core_count

_cores = 0  # nothing is ended until another process would continue
_one_call = threading.Lock()


def may_be_ended() -> None:
    """Say that this process may be ended, because another one would continue."""
    global _cores  # noqa: PLW0603
    _cores = core_count() if hasattr(signal, "setitimer") else 0  # Windows has none


@contextmanager
def ended_if_held(seconds: float) -> Iterator[None]:
    """End the process by SIGVTALRM if a library holds it on all its cores for `seconds` before the context ends.

    A library that uses one core of several takes as many times longer to be ended.
    """
    with _ended_after(seconds * _cores, "ITIMER_VIRTUAL"):
        yield


@contextmanager
def ended_if_endless(seconds: float) -> Iterator[None]:
    """End the process by SIGPROF if a call that keeps Python's lock, and takes one core, takes `seconds` of its time.

    What other threads take meanwhile counts too, so the bound must be far from what such calls take.
    """
    with _one_call, _ended_after(seconds, "ITIMER_PROF"):
        yield


@contextmanager
def _ended_after(seconds: float, timer: str) -> Iterator[None]:
    if not _cores:
        yield
        return
    number = getattr(signal, timer)
    signal.setitimer(number, seconds)
    try:
        yield
    finally:
        signal.setitimer(number, 0)
