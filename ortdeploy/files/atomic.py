"""Files that appear whole or not at all: a temporary name, fsync, rename, fsync of the folder."""

import errno
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

from ortdeploy.files.digests import boot_id, file_digest
from ortdeploy.files.disk import missing_folders
from ortdeploy.files.opening import open_to_write

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

TEMPORARY = ".partial"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@cache
def _machine() -> str:
    """Return what differs between machines that write into one folder; containers differ in the name of the host."""
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return hashlib.sha256(f"{boot_id()} {host}".encode()).hexdigest()[:8]


@contextmanager
def _named_at_the_end(path: Path, writer: str) -> Iterator[Path]:
    """Yield a temporary name of one writer that becomes `path` when the block succeeds; nothing is made durable."""
    temporary = path.with_name(f".{path.name}.{writer}{TEMPORARY}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            error.filename = str(path)  # a write that fails names no file, and nobody else knows which disk it is
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def open_cached(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block succeeds, without waiting for the disk.

    It is for what can be made again: after a power cut the file may be old, empty or torn, and its reader must notice.
    Several processes may write it at once.
    """
    with _named_at_the_end(path, os.urandom(4).hex()) as temporary, open_to_write(temporary) as file:
        yield file


@contextmanager
def open_whole(path: Path, *, folder_too: bool = True) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block succeeds; if the block fails, nothing is left.

    Without `folder_too`, its name is durable only after the next sync of its folder. Another machine may write it
    meanwhile, as when two finish one plan. On one machine, locks keep writers apart: so a process that was killed
    leaves nothing that the next one does not overwrite.
    """
    with _named_at_the_end(path, _machine()) as temporary, open_to_write(temporary) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    if folder_too:
        sync_folder(path.parent)


@contextmanager
def open_synced(path: Path) -> Iterator[BinaryIO]:
    """Open a file under its own name, durable when the block succeeds; if the block fails, nothing is left."""
    try:
        with open_to_write(path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Yield a name to write to, for libraries that open files themselves; otherwise like `open_whole`."""
    with _named_at_the_end(path, _machine()) as temporary:
        yield temporary
        with temporary.open("r+b") as file:  # Windows syncs only what is open for writing
            os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; a no-op on Windows, which needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_durable_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and make their names durable. Raises OSError."""
    for one in missing_folders(folder):
        try:
            one.mkdir(exist_ok=True)
        except FileExistsError:
            one.stat()  # a link that leads nowhere says why
            raise
        sync_folder(one.parent)


class Hashing:
    """A file for writing that computes the SHA-256 of its content.

    If a format goes back to overwrite something, as .npy and .npz do with their headers, the file is read again at the
    end.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Take a file that was just opened, while it still has its temporary name."""
        self._file = file
        self._sha256 = hashlib.sha256()
        self._hashed = 0
        self._is_rewritten = False

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def write(self, data: "Buffer") -> int:
        """Write the data, and add it to the digest."""
        if self._file.tell() == self._hashed:
            self._sha256.update(data)
        else:
            self._is_rewritten = True
        written = self._file.write(data)
        self._hashed += written
        return written

    def writelines(self, lines: "Iterable[Buffer]") -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to another position."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position in the file."""
        return self._file.tell()

    def flush(self) -> None:
        """Flush the buffer."""
        self._file.flush()

    def written(self) -> "Written":
        """Return what is known of the file when all is written: SHA-256, size and modification time. Raises OSError."""
        self._file.flush()
        stat = os.fstat(self._file.fileno())
        digest = file_digest(Path(self._file.name)) if self._is_rewritten else self._sha256.hexdigest()
        return Written(sha256=digest, bytes=stat.st_size, mtime_ns=stat.st_mtime_ns)


class Written(Struct, frozen=True, kw_only=True):
    """SHA-256, size in bytes and modification time of a file that was just written."""

    sha256: str
    bytes: int
    mtime_ns: int


def remove_temporaries(folder: Path, *, seconds: float = 0.0) -> None:
    """Delete temporary files that a killed run left: those that nobody has written for some seconds."""
    until = time.time() - seconds
    below = (path for path in folder.glob(f"*/.*{TEMPORARY}") if not path.parent.is_symlink())
    for path in (*folder.glob(f".*{TEMPORARY}"), *below):
        with suppress(FileNotFoundError):
            if seconds == 0.0 or path.stat().st_mtime < until:
                path.unlink()
