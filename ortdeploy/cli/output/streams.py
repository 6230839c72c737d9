"""Keeps standard output and error on descriptors of their own, so that a run survives if their reader goes away.

The descriptors 1 and 2 are left to native libraries. If a reader goes away, or a log fills its disk, later output is
dropped; the job continues, and `failure_of()` reports it.
"""

import io
import os
import sys
from contextlib import contextmanager

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TextIO


class LastingFile(io.RawIOBase):
    """A file that never fails to write: `failure` keeps its first error, and everything after that is dropped."""

    def __init__(self, raw: io.RawIOBase) -> None:
        """Take an unbuffered file, and close it with this one."""
        self._raw = raw
        self.failure: OSError | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._raw.fileno()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._raw.isatty()

    def write(self, data: "Any", /) -> int:  # bytes or a view of them: what a BufferedWriter holds
        """Write what the file takes; after an error, return the length of the data all the same."""
        try:
            while self.failure is None:
                count = self._raw.write(data)
                if count is not None:
                    return count
                import select  # noqa: PLC0415  only where another process has made the pipe one that does not wait

                select.select([], [self._raw], [])
        except OSError as error:
            self.failure = error
        return len(data)

    def close(self) -> None:
        """Close the file; some file systems report only now that they are full."""
        try:
            self._raw.close()
        except OSError as error:
            self.failure = self.failure or error
        super().close()


def lasting(raw: io.RawIOBase, like: "TextIO | None" = None, *, by_line: bool = True) -> "TextIO":
    """Return a text stream over an unbuffered file that never fails to write, with the encoding of `like`."""
    encoding, errors = (like.encoding, like.errors) if like else ("utf-8", "backslashreplace")
    return io.TextIOWrapper(
        io.BufferedWriter(LastingFile(raw)), encoding=encoding, errors=errors, line_buffering=by_line
    )


def failure_of(stream: "TextIO") -> OSError | None:
    """Return the first error of a lasting stream, or None; None for any other stream."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, LastingFile) else None


def open_missing() -> None:
    """Open those of the descriptors 0 to 2 that are closed, because the next opened file would become stdout."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def private_streams() -> "Iterator[None]":
    """Give sys.stdout and sys.stderr descriptors of their own inside the block; 1 and 2 are left to libraries."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _private(sys.stdout, 1), _private(sys.stderr, 2)
    try:
        yield
    finally:
        ours = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = before
        for stream, old in zip(ours, before, strict=True):
            stream.flush()
            if stream is not old:
                stream.close()


def _private(stream: "TextIO | None", number: int) -> "TextIO":
    """Return a lasting stream for one that writes to the descriptor `number`; any other stream as it is."""
    if stream is not None:
        try:
            if stream.fileno() != number:
                return stream
        except (OSError, ValueError):
            return stream
        stream.flush()
    raw = os.fdopen(os.dup(number), "wb", buffering=0)
    return lasting(raw, stream, by_line=number > 1)


class Overheard(io.TextIOBase):
    """A stream that passes everything on, and keeps up to 1 MiB of its text."""

    MOST = 1024 * 1024

    def __init__(self, stream: "TextIO") -> None:
        self._stream = stream
        self._said: list[str] = []
        self._length = 0

    def write(self, text: str, /) -> int:
        """Pass a text on, and keep it."""
        self._length += len(text)
        if self._length <= self.MOST:
            self._said.append(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._stream.fileno()

    @property
    def closed(self) -> bool:
        """Return whether the stream is closed: libraries ask when the program ends."""
        return self._stream.closed

    def text(self) -> str | None:
        """Return the text that was written; None if it was too much to keep."""
        return None if self._length > self.MOST else "".join(self._said)


@contextmanager
def overheard() -> "Iterator[Overheard]":
    """Keep what is written to sys.stdout inside the block."""
    before = sys.stdout
    own = Overheard(before)
    sys.stdout = own
    try:
        yield own
    finally:
        sys.stdout = before
