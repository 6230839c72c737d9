"""Files that appear whole or not at all: a temporary name, fsync, rename, fsync of the folder."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ortdeploy.files.digests import file_digest

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

TEMPORARY = ".partial"


@contextmanager
def _named_at_the_end(path: Path) -> Iterator[Path]:
    """Give a temporary name, which becomes `path` when the block ends well; the block makes the bytes durable."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block ends well, and leaves nothing when it does not."""
    with _named_at_the_end(path) as temporary, temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def open_synced(path: Path) -> Iterator[BinaryIO]:
    """Open a file under its own name, whose bytes are durable when the block ends; leave nothing when it fails."""
    try:
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Like `open_whole`, for what writes a file by its name: give the name to write."""
    with _named_at_the_end(path) as temporary:
        yield temporary
        with temporary.open("r+b") as file:  # Windows syncs only what is open for writing
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_durable_folder(folder: Path) -> None:
    """Make a folder and those above it where they are missing, their names durable. Raises OSError."""
    if folder.is_dir():
        return
    make_durable_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        folder.stat()  # a link that leads nowhere says why
        raise
    sync_folder(folder.parent)


class Hashing:
    """A file that is written through it, with the SHA-256 of what was written.

    A format that writes over what it has written already (.npy and .npz: their headers hold what is known last) has its
    file read once more at the end.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Take a file that was just opened, and still has the name that it was opened by when it is whole."""
        self._file = file
        self._sha256 = hashlib.sha256()
        self._hashed = 0
        self._is_rewritten = False

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._file.closed

    def write(self, data: "Buffer") -> int:
        """Write, and count in what was written."""
        if self._file.tell() == self._hashed:
            self._sha256.update(data)
        else:
            self._is_rewritten = True
        written = self._file.write(data)
        self._hashed += written
        return written

    def writelines(self, lines: "Iterable[Buffer]") -> None:
        """Write one after the other."""
        for line in lines:
            self.write(line)

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to another place."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()

    def flush(self) -> None:
        """Hand what is held back to the system."""
        self._file.flush()

    def written(self) -> "Written":
        """Return what the file is, now that everything is written. Raises OSError."""
        self._file.flush()
        stat = os.fstat(self._file.fileno())
        digest = file_digest(Path(self._file.name)) if self._is_rewritten else self._sha256.hexdigest()
        return Written(sha256=digest, bytes=stat.st_size, mtime_ns=stat.st_mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a file was when it had been written."""

    sha256: str
    bytes: int
    mtime_ns: int


def remove_temporaries(folder: Path) -> None:
    """Delete what a run left that was killed while it wrote."""
    for path in (*folder.glob(f".*{TEMPORARY}"), *folder.glob(f"*/.*{TEMPORARY}")):
        path.unlink(missing_ok=True)
