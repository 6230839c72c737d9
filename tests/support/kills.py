"""Processes that are killed (SIGKILL) or stopped (SIGSTOP) at a step that is drawn beforehand, so no moment depends on time.

A step is what Python's own functions ask of the system about files. Between two steps nothing that others see changes.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.forks import Fork

_STEPS = frozenset(
    {
        "open", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.utime",
        "sqlite3.connect",
    }
)  # fmt: skip


def in_a_process(do: Callable[[], Any], *, killed_at: int | None = None) -> Fork:
    """Start a process that does something, and is killed before its n-th step, if it has so many."""
    return Fork(lambda: (_count_to(killed_at), do()))


def steps_of(do: Callable[[], Any], note: Path) -> int:
    """Return how many steps something takes, which is done in a process. `note` is a file for the number."""

    def count() -> None:
        seen = _count_to(None)
        do()
        note.write_text(str(len(seen)))

    assert Fork(count).wait() == 0
    return int(note.read_text())


def _count_to(number: int | None) -> list[str]:
    """Note the steps of this process from now on, and kill it before the n-th."""
    seen: list[str] = []

    def look(event: str, _: Any) -> None:
        if event in _STEPS:
            seen.append(event)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    return seen


def stopping(method: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Return a method that stops its process before its n-th call; `wait_until_stopped` waits for that."""
    calls: list[None] = []

    def call(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGSTOP)
        return method(*arguments)

    return call


def wait_until_stopped(process: Any) -> None:
    """Wait until a process of this one has been stopped."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"it ended instead: {status}"
