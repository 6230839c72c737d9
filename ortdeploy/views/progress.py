"""Shows a running job: a bar on a terminal, a log line now and then elsewhere."""

import sys
from typing import Any, TextIO

import structlog

from ortdeploy.durations import Pace

log = structlog.get_logger()

SECONDS_BETWEEN_LINES = 10.0


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
        """Begin with no job."""
        self._pace = Pace(None, 0, SECONDS_BETWEEN_LINES)

    def job_started(self, job: str, done: int, total: int | None) -> None:  # noqa: ARG002  the log has it bound
        """Note where the job begins."""
        self._pace = Pace(total, done, SECONDS_BETWEEN_LINES)

    def rows_done(self, done: int, failed: int) -> None:
        """Log when the time has come."""
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
        """Nothing is open."""


class Bar:
    """A progress bar with rate and time left. Log lines go above it."""

    def __init__(self, stream: TextIO) -> None:
        """Take the terminal."""
        self._stream = stream
        self._bar: Any = None
        self._failed = 0

    def job_started(self, job: str, done: int, total: int | None) -> None:
        """Open a bar."""
        from tqdm import tqdm  # noqa: PLC0415  only a terminal needs it

        self._failed = 0
        self._bar = tqdm(desc=job, initial=done, total=total, unit=" rows", file=self._stream, dynamic_ncols=True)

    def rows_done(self, done: int, failed: int) -> None:
        """Move the bar."""
        self._bar.update(done - self._bar.n)
        if failed != self._failed:
            self._failed = failed
            self._bar.set_postfix(failed=failed, refresh=False)

    def job_ended(self) -> None:
        """Close the bar; it may never have been opened."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class AboveBar:
    """A stream for log lines that a bar on the same terminal does not overwrite."""

    def __init__(self, stream: TextIO) -> None:
        """Take the terminal."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write above any open bar."""
        if "tqdm" in sys.modules:
            from tqdm import tqdm  # noqa: PLC0415

            with tqdm.external_write_mode(file=self._stream):
                return self._stream.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the terminal."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._stream.isatty()
