"""Shows the progress of a running job: a live line on a terminal, otherwise a log line every ten seconds."""

import time
from typing import Any, TextIO

from ortdeploy.durations import Pace
from ortdeploy.events import log
from ortdeploy.process.memory import resident_memory
from ortdeploy.units import format_size
from ortdeploy.views.text import printable

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
    """One line for the running job: rows, rate, time left, failed rows, memory. Log lines appear above it."""

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        """Take the terminal."""
        self._stream = stream
        self._color = color
        self._progress: Any = None
        self._task: Any = None

    def job_started(self, job: str, done: int, total: int | None) -> None:
        """Show the line."""
        from rich.console import Console  # noqa: PLC0415  only a terminal needs it
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415  as above

        of_all = "" if total is None else " of {task.total:,.0f}"
        counts = "{task.completed:,.0f}" + of_all + " rows"
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            *([BarColumn(bar_width=20), TextColumn("{task.percentage:3.0f}%")] if total is not None else []),
            TextColumn(counts),
            TextColumn("{task.fields[rate]}"),
            *([TimeRemainingColumn(compact=True)] if total is not None else []),
            TextColumn("{task.fields[more]}"),
            console=Console(file=self._stream, force_terminal=True, no_color=not self._color),
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._first, self._begin, self._shown = done, time.monotonic(), 0.0
        self._task = self._progress.add_task(printable(job), total=total, completed=done, rate="", more="")
        self._progress.start()
        _open_lines.append(self._progress)

    def rows_done(self, done: int, failed: int) -> None:
        """Update the line."""
        seconds = time.monotonic() - self._begin
        if seconds - self._shown < SECONDS_BETWEEN_MOVES:
            return
        self._shown = seconds
        rate = f"{(done - self._first) / seconds:,.0f} rows/s"
        told = [f"{failed:,} failed"] if failed else []
        taken = resident_memory()
        told += [format_size(taken)] if taken is not None else []
        self._progress.update(self._task, completed=done, rate=rate, more=", ".join(told))

    def job_ended(self) -> None:
        """Remove the line, if there is one."""
        if self._progress is not None:
            self._progress.stop()
            _open_lines.remove(self._progress)
            self._progress = None


_open_lines: list[Any] = []


class AboveLine:
    """A stream whose log lines appear above the live line of the same terminal."""

    def __init__(self, stream: TextIO) -> None:
        """Take the terminal."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write above the live line, if there is one."""
        if not _open_lines:
            return self._stream.write(text)
        from rich.text import Text  # noqa: PLC0415  is loaded where a line is open

        _open_lines[-1].console.print(Text.from_ansi(text), end="", soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Flush the terminal."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._stream.isatty()
