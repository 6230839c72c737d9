"""Answers questions in a fork of this process, which has all libraries loaded.

A new Python takes tenths of a second to load them, and seconds on a small board; a fork takes hundredths. As with a
`Child`, a library that crashes the fork ends nothing else.
"""

import faulthandler
import json
import os
import selectors
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from io import RawIOBase
from typing import Any, NoReturn

from ortdeploy.process.child import Answer, die_with_the_parent
from ortdeploy.process.held_process import may_be_ended
from ortdeploy.process.held_signals import HeldSignals

_PIECE = 64 * 1024
_LOOKS = 0.5
"""Seconds between looks at whether somebody has asked to stop."""

Messages = Callable[[], Iterable[Mapping[str, Any]]]


def can_fork() -> bool:
    """Return whether a fork is safe: on Linux, in the main thread, before jobs have threads in native libraries."""
    return sys.platform == "linux" and threading.current_thread() is threading.main_thread()


def ask_fork(messages: Messages, *, seconds: float, stopped: Callable[[], bool] = lambda: False) -> Answer:
    """Return the messages of a fork of this process, and its exit status.

    The fork is killed after `seconds`, or soon after `stopped` returns True.

    Prints of the fork are dropped.
    """
    reading, writing = os.pipe()
    child, ended = None, False
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            with HeldSignals() as held, warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # Python 3.12 warns of threads that are in no library
                child = os.fork()
                if child == 0:
                    held.end_a_fork()
                    _be_the_fork(messages, writing)
                os.close(writing)
            said, ended = _read_until(pipe, time.monotonic() + seconds, stopped)
        finally:  # such as Ctrl-C
            status = None if child is None else _end(child, is_over=ended)
    whole = [line for line in said.splitlines(keepends=True) if line.endswith(b"\n")]
    code = os.waitstatus_to_exitcode(status or 0)
    return Answer([json.loads(line) for line in whole], code, late=not ended, printed="")


def _end(child: int, *, is_over: bool) -> int:
    """End a fork that has not closed its pipe; return its status."""
    if not is_over:
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _be_the_fork(messages: Messages, writing: int) -> NoReturn:
    """Answer and end, without the exit handlers that this process has registered."""
    code = 1
    try:
        die_with_the_parent()
        may_be_ended()
        faulthandler.disable()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        for message in messages():
            os.write(writing, f"{json.dumps(message)}\n".encode())
        code = 0
    finally:
        os._exit(code)


def _read_until(pipe: RawIOBase, deadline: float, stopped: Callable[[], bool]) -> tuple[bytes, bool]:
    """Return the bytes that came over a pipe, and whether its other end was closed before the deadline."""
    said = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and not stopped():
            if not selector.select(min(left, _LOOKS)):
                continue
            piece = pipe.read(_PIECE)
            if not piece:
                return bytes(said), True
            said += piece
    return bytes(said), False
