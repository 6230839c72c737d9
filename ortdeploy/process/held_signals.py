"""Keeps Ctrl-C from being lost where Python drops exceptions: in a fork, and in what runs when objects go away."""

import os
import signal
import sys

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Self

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class HeldSignals:
    """Holds signals back inside of a `with` block, and lets their handlers run at its end.

    Python calls hooks of libraries before a fork, and drops what they raise; a handler that raises KeyboardInterrupt
    there would print a traceback and change nothing. Only the main thread runs handlers, so others hold nothing.
    """

    def __enter__(self) -> "Self":
        """Take the place of the handlers."""
        self._came: list[int] = []
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if callable(handler):
                try:
                    signal.signal(number, self._hold)
                except ValueError:  # not the main thread
                    break
                self._before[number] = handler
        return self

    def __exit__(self, *_failure: object) -> None:
        """Put the handlers back, and call those whose signals came."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for number in self._came:
            signal.raise_signal(number)

    def end_a_fork(self) -> None:
        """In a fork: let its signals end it at once, without a word; the process that forked it says what happens."""
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)

    def _hold(self, number: int, _frame: "FrameType | None") -> None:
        self._came.append(number)


def interrupt_again() -> None:
    """Raise KeyboardInterrupt once more where Python has dropped it, such as while an object went away."""
    before = sys.unraisablehook

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            import threading  # noqa: PLC0415  only then

            threading.Timer(_SOON, os.kill, (os.getpid(), signal.SIGINT)).start()  # not in here, where it would be lost
        else:
            before(dropped)

    sys.unraisablehook = hook


_SOON = 0.02
"""Seconds until a dropped KeyboardInterrupt is raised again; Python leaves the place that drops it in less."""
