"""Keeps standard output and error on descriptors of their own, so that a run survives when their reader goes away.

The descriptors 1 and 2 are left to native libraries. Whoever read along may go away, and a log may fill its disk: what
is written then is lost, but no job ends for it, and who asks is told.
"""

import io
import os
import select
import sys
from contextlib import contextmanager

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TextIO


class LastingFile(io.RawIOBase):
    """A file whose first failure to take something is kept in `failure`, and after which it takes nothing more."""

    def __init__(self, raw: io.RawIOBase) -> None:
        """Take an unbuffered file, which is closed with this one."""
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
        """Write what can be written, and say that all was."""
        try:
            while self.failure is None:
                count = self._raw.write(data)
                if count is not None:
                    return count
                select.select([], [self._raw], [])  # another process has made the pipe one that does not wait
        except OSError as error:
            self.failure = error
        return len(data)

    def close(self) -> None:
        """Close the file as well; some file systems say only then that it is full."""
        try:
            self._raw.close()
        except OSError as error:
            self.failure = self.failure or error
        super().close()


def lasting(raw: io.RawIOBase, like: "TextIO | None" = None, *, by_line: bool = True) -> "TextIO":
    """Return an unbuffered file as a stream of text that never fails, encoded as another one is."""
    encoding, errors = (like.encoding, like.errors) if like else ("utf-8", "backslashreplace")
    return io.TextIOWrapper(
        io.BufferedWriter(LastingFile(raw)), encoding=encoding, errors=errors, line_buffering=by_line
    )


def failure_of(stream: "TextIO") -> OSError | None:
    """Return what kept a lasting stream from being written, if anything; of any other stream nothing is known."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, LastingFile) else None


def open_missing() -> None:
    """Open what a process was started without: the next file opened would be taken for its standard output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def private_streams() -> "Iterator[None]":
    """Give sys.stdout and sys.stderr descriptors of their own inside the block: 1 and 2 become the libraries'."""
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
    """Return a lasting stream beside one that writes to a descriptor; any other stream as it is."""
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
    """A stream that hands everything on, and keeps its text up to some length."""

    MOST = 1024 * 1024

    def __init__(self, stream: "TextIO") -> None:
        """Take the stream."""
        self._stream = stream
        self._said: list[str] = []
        self._length = 0

    def write(self, text: str, /) -> int:
        """Hand a text on, and keep it."""
        self._length += len(text)
        if self._length <= self.MOST:
            self._said.append(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Hand on what the stream holds back."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._stream.fileno()

    def text(self) -> str | None:
        """Return what was said; None where it was too much."""
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
