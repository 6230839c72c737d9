"""Shows the progress of a running job: a live line on a terminal, otherwise a log line every ten seconds."""

import time
from collections.abc import Iterator
from typing import TextIO

from msgspec import Struct

from ortdeploy.durations import Pace, clock
from ortdeploy.events import log
from ortdeploy.process.memory import resident_memory
from ortdeploy.terminal_text import printable
from ortdeploy.units import format_size
from ortdeploy.views.live_line import Line, Piece

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_MOVES = 0.2


class Silent:
    """Shows nothing (-q)."""

    def job_started(self, job: str, done: int, total: int | None) -> None:
        """Do nothing."""

    def rows_done(self, done: int, failed: int) -> None:
        """Do nothing."""

    def job_ended(self) -> None:
        """Do nothing."""


class LogLines:
    """Logs `job.progressed` every ten seconds, for journals and CI."""

    def __init__(self) -> None:
        """Begin without a job."""
        self._pace = Pace(None, 0, SECONDS_BETWEEN_LINES)

    def job_started(self, job: str, done: int, total: int | None) -> None:  # noqa: ARG002  the log has it bound
        """Remember how many rows were done when the job began."""
        self._pace = Pace(total, done, SECONDS_BETWEEN_LINES)

    def rows_done(self, done: int, failed: int) -> None:
        """Log if ten seconds have passed."""
        told = self._pace.told(done)
        if told is None:
            return
        rate, left = told
        log.info(
            "job.progressed",
            done=done,
            total=self._pace.total,
            failed=failed,
            rows_per_second=round(rate),
            seconds_left=left,
        )

    def job_ended(self) -> None:
        """Do nothing."""


class LiveLine:
    """One line for the running job: rows, rate, time left, failed rows, memory.

    A narrow terminal gets less of it, but always the job and its rows.
    """

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        self._stream = stream
        self._color = color
        self._line: Line | None = None

    def job_started(self, job: str, done: int, total: int | None) -> None:
        """Show the line."""
        self._job, self._total = printable(job), total
        self._first, self._begin, self._shown = done, time.monotonic(), 0.0
        self._moved = _Moved(done=done)
        self._line = Line(self._stream, self._pieces, color=self._color)

    def rows_done(self, done: int, failed: int) -> None:
        """Update the line."""
        seconds = time.monotonic() - self._begin
        if seconds - self._shown < SECONDS_BETWEEN_MOVES:
            return
        self._shown = seconds
        self._moved = _Moved(done=done, failed=failed, rate=(done - self._first) / seconds, memory=resident_memory())

    def job_ended(self) -> None:
        """Remove the line, if there is one."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _pieces(self, ascii_only: bool) -> Iterator[Piece]:
        """Yield what the line shows; a bar goes first if there is no room for all, then memory, then the total."""
        now, total = self._moved, self._total
        yield Piece(text=self._job, style="bold")
        if total:
            filled = min(now.done * _BAR // total, _BAR)
            full, empty = ("#", ".") if ascii_only else ("━", "━" if self._color else "┈")
            yield Piece(text=full * filled, rank=7, style="green" if now.done >= total else "cyan")
            yield Piece(text=empty * (_BAR - filled), rank=7, style="bright_black", glue="" if filled else " ")
            yield Piece(text=f"{min(now.done * 100 // total, 100)}%", rank=2)
        yield Piece(text=f"{now.done:,}")
        if total is not None:
            yield Piece(text=f"of {total:,}", rank=5)
        yield Piece(text="rows")
        if now.rate is not None:
            yield Piece(text=f"{now.rate:,.0f} rows/s", rank=4)
            if total is not None and now.rate:
                yield Piece(text=f"{clock((total - now.done) / now.rate)} left", rank=3, style="cyan")
        if now.failed:
            yield Piece(text=f"{now.failed:,} failed", rank=1, style="red")
        if now.memory is not None:
            yield Piece(text=format_size(now.memory), rank=6)


_BAR = 20  # columns


class _Moved(Struct, frozen=True, kw_only=True):
    """How far a job is. `rate` is in rows a second and `memory` in bytes, None before the first batch."""

    done: int
    failed: int = 0
    rate: float | None = None
    memory: int | None = None
