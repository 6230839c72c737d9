"""Signals that ask a run to stop cleanly."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ortdeploy.process import last_words

_SIGNALS_OF_PATIENCE = 2


class StopFlag:
    """Is set by the first signal to stop. The second signal raises KeyboardInterrupt, the third exits at once.

    `forward` gets every signal, to pass it on to a child.
    """

    def __init__(self, forward: Callable[[int], None] = lambda _number: None) -> None:
        self._signal: int | None = None
        self._signals = 0
        self.forward = forward

    def __call__(self) -> bool:
        """Return whether somebody asked the run to stop."""
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + (self._signal or signal.SIGINT)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block."""
        with _handled_by(self._set):
            yield

    def _set(self, number: int, _frame: FrameType | None) -> None:
        self.forward(number)
        self._signals += 1
        if self._signals > _SIGNALS_OF_PATIENCE:
            last_words.leave()
            os._exit(128 + number)
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = number


@contextmanager
def ending_what_began() -> Iterator[None]:
    """Let a signal to stop raise KeyboardInterrupt in the block, and end this process after it, as it would have."""
    came: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:  # a second one, such as systemd's beside that of watch, lets the end come to its end
            raise KeyboardInterrupt

    try:
        with _handled_by(interrupt):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals to stop inside the block, and as before after it."""
    before = {number: signal.signal(number, handle) for number in _signals_to_stop()}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        last_words.have_requests_told()


def _signals_to_stop() -> list[int]:
    """Return SIGINT and SIGTERM, and SIGHUP (a closed terminal) unless nohup ignores it."""
    hangup = getattr(signal, "SIGHUP", None)  # which Windows does not have
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hangup]
