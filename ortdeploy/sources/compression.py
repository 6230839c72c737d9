"""Opens input files; .gz, .bz2 and .xz files are decompressed."""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import BinaryIO

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.compact_list import in_blocks
from ortdeploy.files.memory_budget import RoomError, allowed, room
from ortdeploy.files.stored_file import open_plain
from ortdeploy.units import format_size

_COMPRESSED = frozenset({".bz2", ".gz", ".xz"})
"""The last suffixes of files that are compressed."""


def format_suffix(path: str) -> str:
    """Return the suffix that tells a file's format, in lower case: `.csv` for rows.csv.gz."""
    pure = PurePath(path)
    return PurePath(pure.stem).suffix.lower() if is_compressed(path) else pure.suffix.lower()


def one_of_each_suffix(files: Sequence[str]) -> Collection[str]:
    """Return the first file of each suffix, in order.

    So whatever depends on the suffix alone is worked out for a handful of files instead of a hundred thousand.
    """
    first: dict[str, str] = {}
    common: str | None = None
    for some in in_blocks(files):
        if common is not None and _all_end_with(common, some):
            continue
        for path in some:
            # The character in front tells suffixes from hidden names.
            first.setdefault(path[path.rfind(".") - 1 :], path)
        common = PurePath(some[-1]).suffix or None
    return files if any(map(is_compressed, first.values())) else first.values()


def _all_end_with(suffix: str, paths: Sequence[str]) -> bool:
    """Return whether paths have this suffix, which takes a tenth of looking at each."""
    text = "\0".join((*paths, ""))
    return text.count(f"{suffix}\0") == len(paths) and f"/{suffix}\0" not in text and f"{os.sep}{suffix}\0" not in text


def is_compressed(path: str) -> bool:
    """Return whether a file's last suffix says that it is compressed."""
    return PurePath(path).suffix.lower() in _COMPRESSED


@contextmanager
def open_binary(path: str, shown: str) -> Iterator[BinaryIO]:
    """Open a file, decompressed. Raises OrtdeployError, also for errors while it is read."""
    try:
        with _decompressed(path, shown) if is_compressed(path) else open_plain(path) as file:
            yield file
    except OSError as error:  # gzip's and bz2's complaints about content too
        raise OrtdeployError(f"{shown} cannot be read: {error.strerror or error}") from error


@contextmanager
def _decompressed(path: str, shown: str) -> Iterator[BinaryIO]:
    from ortdeploy.sources.compressed import BROKEN, open_compressed  # noqa: PLC0415  few files are compressed

    try:
        with open_compressed(path, PurePath(path).suffix.lower()) as file:
            yield file
    except BROKEN as error:
        raise OrtdeployError(f"{shown} cannot be decompressed: {error}") from error


class Lines:
    """Limits the length of a line, because it is held whole: a small compressed file can hold gigabytes."""

    def __init__(self, shown: str, taken: int, limit: int | None) -> None:
        """Take the memory that a line takes per byte, and the job's memory limit in bytes."""
        self._shown, self._limit = shown, limit
        self._room = room(limit)
        self.most = self._room // taken

    def read(self, file: BinaryIO, number: int = 0) -> Iterator[bytes]:
        """Yield the lines of a file behind the first `number`. Raises OrtdeployError at a line that is too long."""
        while line := file.readline(self.most + 1):
            number += 1
            if len(line) > self.most:
                raise self.too_long(number)
            yield line

    def too_long(self, number: int) -> RoomError:
        """Return the message for a line that is too long."""
        return RoomError(
            f"{self._shown}:{number} has more than {format_size(self.most)} in one line, which would take more than "
            f"{format_size(self._room)} of memory, and {allowed(self._room, self._limit)}"
        )
