"""Ends a process that a library holds: while native code keeps Python's lock, no thread of Python can end anything.

The system can: its timer needs no lock. It counts processor time, which stands still while the process is stopped.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ortdeploy.process.cores import core_count

_cores = 0  # nothing is ended until another process would continue


def may_be_ended() -> None:
    """Say that this process may be ended, because another one would continue."""
    global _cores  # noqa: PLW0603
    _cores = core_count() if hasattr(signal, "setitimer") else 0  # Windows has none


@contextmanager
def ended_if_held(seconds: float) -> Iterator[None]:
    """End the process by SIGVTALRM if a library holds it on all its cores for `seconds` before the context ends.

    A library that uses one core of several takes as many times longer to be ended.
    """
    if not _cores:
        yield
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds * _cores)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
