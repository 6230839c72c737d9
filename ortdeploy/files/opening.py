"""Opens files: the one place that does, and only regular files.

A named pipe waits for a writer, a terminal for a key, and /dev/zero has no end; a watchdog of the kernel resets the
machine if it is opened and closed. So a path is looked at before it is opened, and again once it is open. Opening never
waits, whatever has taken the path's place in between.
"""

import errno
import os
import stat

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from io import BufferedReader, BufferedWriter, FileIO
    from typing import IO, TextIO, TypeVar

    AnyPath = str | os.PathLike[str]
    _Path = TypeVar("_Path", bound=str | os.PathLike[str])

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # which Windows does not have
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NoRegularFileError(OSError):
    """A path names something else than a regular file."""

    def __init__(self, path: "AnyPath", kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, and only regular files are opened", os.fspath(path))


def descriptor_of(path: "AnyPath") -> int:
    """Open a regular file for reading, without waiting. Raises OSError, which says what else the path is."""
    regular_path(path)
    try:
        return _open(path, _FLAGS | _NO_WAIT)
    except BlockingIOError:  # another process has a lease of it, as Samba may; the system asks for it back
        return _open(path, _FLAGS)


def regular_path(path: "_Path", *, may_be_missing: bool = False) -> "_Path":
    """Return a path that names a regular file, or perhaps nothing: for libraries that open it themselves.

    Raises OSError, which says what else the path is.
    """
    try:
        found = os.stat(path)  # noqa: PTH116  pathlib takes longer, and there may be a million
    except FileNotFoundError:
        if may_be_missing:
            return path
        raise
    _require(found, path)
    return path


def open_regular(path: "AnyPath") -> "BufferedReader":
    """Open a regular file for reading. Raises OSError, which says what else the path is."""
    descriptor = descriptor_of(path)
    return open(path, "rb", opener=lambda _path, _flags: descriptor)


def open_unbuffered(path: "AnyPath") -> "FileIO":
    """Open a regular file to read into buffers of the caller. Raises OSError, which says what else the path is."""
    descriptor = descriptor_of(path)
    return open(path, "rb", buffering=0, opener=lambda _path, _flags: descriptor)


def open_text(path: "AnyPath", *, errors: str = "strict", newline: str | None = None) -> "TextIO":
    """Open a regular file of UTF-8 text; `errors` and `newline` are those of Python's `open`. Raises OSError."""
    descriptor = descriptor_of(path)
    return open(path, encoding="utf-8", errors=errors, newline=newline, opener=lambda _path, _flags: descriptor)


def open_to_write(path: "AnyPath") -> "BufferedWriter":
    """Open a regular file to write it anew, or make one. Raises OSError, which says what else the path is."""
    regular_path(path, may_be_missing=True)
    return open(path, "wb", opener=lambda name, flags: _open(name, flags | _NO_WAIT))


def open_to_change(path: "AnyPath") -> "FileIO":
    """Open a regular file to read it and to write over parts of it, as `open_to_write`. Raises OSError."""
    regular_path(path)
    return open(path, "r+b", buffering=0, opener=lambda name, flags: _open(name, flags | _NO_WAIT))


def read_whole(path: "AnyPath") -> bytes:
    """Return what a regular file holds. Raises OSError."""
    with open_regular(path) as file:
        return file.read()


def copy_into(file: "IO[bytes]", path: "AnyPath") -> None:
    """Write what a regular file holds into an open one. Raises OSError."""
    import shutil  # noqa: PLC0415  brings every way to compress, and little is copied

    with open_regular(path) as source:
        shutil.copyfileobj(source, file)


def read_text(path: "AnyPath", *, errors: str = "strict") -> str:
    """Return the UTF-8 text that a regular file holds, whatever ends its lines. Raises OSError, ValueError."""
    with open_text(path, errors=errors) as file:
        return file.read()


def _open(path: "AnyPath", flags: int) -> int:
    descriptor = os.open(path, flags, 0o666)
    try:
        _require(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require(found: os.stat_result, path: "AnyPath") -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    kind = next((words for is_kind, words in _KINDS if is_kind(found.st_mode)), "something else")
    raise NoRegularFileError(path, kind)
