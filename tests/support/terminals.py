"""What a terminal of a given width shows."""

import io
import re
from collections.abc import Callable, Iterable

import pytest
from rich.console import Console, ConsoleDimensions

from ortdeploy.views.live_line import Line, Piece
from ortdeploy.views.progress import LiveLine


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen:
    """A terminal that a test resizes."""

    def __init__(self, width: int, encoding: str = "utf-8") -> None:
        self.width = width
        self.stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")

    @property
    def size(self) -> ConsoleDimensions:
        return ConsoleDimensions(self.width, 25)

    def last_frame(self, word: str) -> str:
        """Return what a live line that has this word has shown last."""
        self.stream.seek(0)
        frames = re.split("\r\x1b\\[2K|\n", self.stream.read())
        return next(frame for frame in reversed(frames) if word in frame)


def shown_of_job(width: int, *, then: int | None = None, encoding: str = "utf-8", color: bool = False) -> str:
    """Return the live line of a job after two seconds, in a terminal of `width` columns that has `then` at the end."""
    clock, screen = Clock(), Screen(width, encoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Console, "size", property(lambda _: screen.size))
        patch.setattr("ortdeploy.views.progress.time.monotonic", clock)
        patch.setattr("ortdeploy.views.progress.resident_memory", lambda: 22 * 1024 * 1024)
        patch.delenv("NO_COLOR", raising=False)
        patch.setenv("TERM", "xterm-256color")
        line = LiveLine(screen.stream, color=color)
        line.job_started("read", 0, 1_000_000)
        clock.now = 2.0
        line.rows_done(234_567, 17)
        screen.width = then or width
        line.job_ended()
    return screen.last_frame("read")


def shown_of(pieces: Callable[[bool], Iterable[Piece]], width: int) -> str:
    """Return a live line of these pieces."""
    screen = Screen(width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Console, "size", property(lambda _: screen.size))
        Line(screen.stream, pieces, color=False).close()
    return screen.last_frame(next(iter(pieces(False))).text.split()[0])
