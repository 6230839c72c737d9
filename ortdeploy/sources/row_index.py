"""Where rows begin in text files, so that a reader goes to a row without reading those before it.

A file's index has its number of rows, if the file was read to its end, and a mark every megabyte: the number of a row,
the number of lines before it, and the offset at which it begins. An index does not depend on parts, so it serves every
plan. A reader makes it while it reads, and a plan that must know the number of rows reads files for it. The memo keeps
indexes by the path of their file from the manifest. One counts only while size and time of the file, and the
bytes in front of the mark, are unchanged; of an object on a store, only while its version is. A compressed file has no
marks: it is skipped as a whole, or read from its start. So is a video, whose packets are quickly passed over.

A saved plan has indexes too. They lie beside those that were made here, and only shards of such a plan use them. No
index is believed: a reader compares each mark that it passes with where that row begins.
"""

import os
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import PLAIN, Dialect
from ortdeploy.files.disk import make_folders
from ortdeploy.files.object_store import UNVERSIONED
from ortdeploy.files.opening import open_regular
from ortdeploy.files.stored_file import StoredFile
from ortdeploy.sources.compression import is_compressed
from ortdeploy.sources.files import shown
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.state import memo

_KIND = "rows"
"""The kind of the indexes, of the memo."""

EVERY = 1024 * 1024
"""Bytes between two marks, at least."""

_KEPT_EVERY = 64 * EVERY
"""Bytes that are read before an index is written again; after a kill, at most this much is read again."""

_CHECKED = 4096
"""Bytes in front of a mark that must be unchanged."""

_SMALL = 64 * 1024
"""Bytes of a local file that is read again each time, because that takes no longer than to look for its index."""

_TOLD = "told "
"""How the keys of indexes begin that come from a saved plan."""

_RACY_NS = 2_000_000_000  # a file changed less than this before it is read may change again within one tick

_RECORDS = 2
"""The version of what a record of CSV is: in the first one, blank lines were rows, and a quote swallowed any number."""


class Mark(NamedTuple):
    """A place in a file: the number of the row that begins there, and how many lines and bytes are before it.

    `check` is a checksum of the bytes in front of it.
    """

    row: int
    line: int
    offset: int
    check: int = 0


START = Mark(0, 0, 0)


class FileIndex(Struct, frozen=True, kw_only=True):
    """What is known of one file; `rows` is None if it was not read to its end. `is_told`: by a saved plan."""

    marks: tuple[Mark, ...] = ()
    rows: int | None = None
    is_told: bool = False

    @property
    def is_hearsay(self) -> bool:
        """Whether a saved plan says that the file has no rows: then no job would read it and find some."""
        return self.is_told and self.rows == 0

    def before(self, row: int) -> Mark:
        """Return the last mark at or before a row of the file; no row stands in front of the first, to compare one."""
        place = bisect_right(self.marks, row, key=lambda mark: mark.row)
        return self.marks[place - 1] if place and self.marks[place - 1].row else START


UNKNOWN = FileIndex()


def as_index(rows: Any, marks: Any) -> FileIndex:
    """Return an index of what a plan file says. Raises ValueError, TypeError if no file can have such places."""
    found = tuple(Mark(*mark) for mark in marks)
    numbers = [rows, *(number for mark in found for number in mark)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a place is no number")
    if any(one.row >= other.row or one.offset >= other.offset for one, other in pairwise(found)):
        raise ValueError("places are not in order")
    if found and found[-1].row >= rows:
        raise ValueError("a place is behind the last row")
    return FileIndex(rows=rows, marks=found)


ReadRows = Callable[[str, Mark], Iterator[RawRow]]
"""Yields the rows of a file from a mark on, each with its place."""


class CountedModule(Protocol):
    """The names that the module of a format has whose rows only reading counts, beside those of `SourceModule`."""

    def read_rows(self, path: str, mark: Mark, *, folder: str, wanted: Wanted) -> Iterator[RawRow]:
        """Yield the rows of a file from a mark on."""


class Indexes(Protocol):
    """The indexes of the files of one input."""

    def of(self, path: str) -> FileIndex:
        """Return what is known of a file, which is not changed since."""

    def keep(self, path: str, index: FileIndex) -> None:
        """Keep what is known of a file now."""


class NoIndexes:
    """Knows nothing, and keeps nothing."""

    def of(self, _path: str) -> FileIndex:
        """Return that nothing is known."""
        return UNKNOWN

    def keep(self, _path: str, _index: FileIndex) -> None:
        """Do nothing."""


class KeptIndexes:
    """The indexes of files of one format, in a state folder. If they cannot be kept, they are made again."""

    def __init__(
        self,
        state_dir: Path,
        folder: str,
        kind: str,
        *,
        told: bool = False,
        dialect: Dialect = PLAIN,
        chosen: Sequence[object] = (),
    ) -> None:
        """Take the manifest's folder, from which files are named; `told`: those of saved plans count too.

        `chosen` are the settings that choose rows.
        """
        self._chosen = chosen
        self.dialect = dialect
        self.state_dir = state_dir
        self.told = told
        self.base = folder
        self.kind = kind
        self._states: dict[str, list[int] | None] = {}

    @property
    def is_there(self) -> bool:
        """Whether an index was kept at all."""
        return (self.state_dir / memo.FOLDER / _KIND).is_dir()

    def of(self, path: str) -> FileIndex:
        """Return what is known of a file, which is not changed since."""
        with suppress(OSError):
            self._states[path] = _state(path)
            if self._states[path] is None:
                return UNKNOWN
            own = self._read(path)
            return self._read(path, _TOLD) if own.rows is None and self.told else own
        return UNKNOWN

    def _read(self, path: str, prefix: str = "") -> FileIndex:
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = memo.get(self.state_dir, _KIND, f"{prefix}{self._name(path)}")
            if known is not None and known["of"] == self._of(path):
                marks = tuple(Mark(*mark) for mark in known["marks"])
                if self._is_sound(path, marks):
                    return FileIndex(marks=marks, rows=known["rows"], is_told=prefix == _TOLD)
        return UNKNOWN

    def keep(self, path: str, index: FileIndex) -> None:
        """Keep what is known of a file, unless it changed while it was read, or may change without another time."""
        state = self._states.get(path)
        with suppress(OSError):
            if state is not None and _state(path) == state and not _may_change_unseen(path, state):
                self._write(path, index)

    def tell(self, path: str, state: tuple[int, int], index: FileIndex) -> None:
        """Keep what a saved plan says of a file, by the size and the time or version that it says the file has."""
        with suppress(OSError):
            self._states[path] = [*state, 0]
            self._write(path, index, _TOLD)

    def _write(self, path: str, index: FileIndex, prefix: str = "") -> None:
        """Remember an index. Raises OSError."""
        known = {"of": self._of(path), "rows": index.rows, "marks": [list(mark) for mark in index.marks]}
        make_folders(self.state_dir)
        memo.put(self.state_dir, _KIND, f"{prefix}{self._name(path)}", known)

    def _of(self, path: str) -> list[object]:
        size, version, _ = self._states[path] or (0, 0, 0)
        records = [_RECORDS, *self.dialect.records] if self.kind == "csv" else []
        return [self.kind, self._name(path), size, version, *records, *self._chosen]

    def _name(self, path: str) -> str:
        return os.fsencode(shown(path, self.base)).hex()

    @staticmethod
    def _is_sound(path: str, marks: Sequence[Mark]) -> bool:
        """Return whether the bytes in front of the last mark are unchanged."""
        if isinstance(path, StoredFile):
            return True
        with open_regular(path) as file:
            return not marks or check_of(file, marks[-1].offset) == marks[-1].check


def _state(path: str) -> list[int] | None:
    """Return size, time or version, and time of the inode; None if the file is not worth an index. Raises OSError."""
    if isinstance(path, StoredFile):
        return None if path.state is None or path.state[1] == UNVERSIONED else [*path.state, 0]
    found = os.stat(path)  # noqa: PTH116  text
    return None if found.st_size < _SMALL else [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _may_change_unseen(path: str, state: Sequence[int]) -> bool:
    """Return whether a file here changed so short ago that its time may stay the same when it changes again."""
    return not isinstance(path, StoredFile) and max(state[1:]) > time.time_ns() - _RACY_NS


def check_of(file: BinaryIO, offset: int) -> int:
    """Return the checksum of the bytes in front of an offset; the file's position does not change."""
    at = file.tell()
    file.seek(max(0, offset - _CHECKED))
    found = zlib.crc32(file.read(min(offset, _CHECKED)))
    file.seek(at)
    return found


def rows_from(files: Iterable[str], read: ReadRows, indexes: Indexes, skip: int) -> Iterator[RawRow]:
    """Yield the rows of files after the first `skip`; files that are skipped whole are not read if they have an index.

    The indexes are completed on the way.
    """
    for path in files:
        known = indexes.of(path)
        if known.rows is not None and known.rows <= skip and not known.is_hearsay:
            skip -= known.rows
            continue
        mark = known.before(skip)
        rows = _noted(path, read(path, mark), mark, known, indexes)
        passed = sum(1 for _ in islice(rows, skip - mark.row))
        if mark.row + passed < skip:
            skip -= mark.row + passed
            continue
        yield from rows
        skip = 0


def count_rows(files: Iterable[str], read: ReadRows, indexes: Indexes) -> int:
    """Return how many rows files have; files without a complete index are read."""
    total = 0
    for path in files:
        known = indexes.of(path)
        if known.rows is None or known.is_hearsay:
            mark = known.before(2**63)
            rows = mark.row + sum(1 for _ in _noted(path, read(path, mark), mark, known, indexes))
        else:
            rows = known.rows
        total += rows
    return total


def known_rows(files: Iterable[str], indexes: Indexes) -> int | None:
    """Return how many rows files have, if all have a complete index; none is read."""
    total = 0
    for path in files:
        rows = indexes.of(path).rows
        if rows is None:
            return None
        total += rows
    return total


def _noted(path: str, rows: Iterator[RawRow], start: Mark, known: FileIndex, indexes: Indexes) -> Iterator[RawRow]:
    """Yield rows, and add marks behind the last one that the index has.

    Each mark is compared with the row that begins there before the row in front of it is passed on: a job that ends
    with that row has compared it too. An index that the file contradicts is forgotten: the next plan counts the rows.
    What a saved plan tells is not kept as what this machine has seen. Raises OrtdeployError if the file has other rows
    than its index says.
    """
    marks = list(known.marks)
    to_pass = iter([mark for mark in marks if mark.row > start.row])
    ahead = next(to_pass, None)
    has_marks = not is_compressed(path)
    due = (marks[-1].offset if marks else 0) + EVERY
    kept, count, total = start.offset, start.row, known.rows
    try:
        raw = next(rows, None)
        while raw is not None:
            line, offset = raw.begin
            if offset >= due and has_marks:
                marks.append(Mark(raw.number, line, offset, _check_in(path, offset)))
                due = offset + EVERY
                if offset >= kept + _KEPT_EVERY and not known.is_told:
                    indexes.keep(path, FileIndex(marks=tuple(marks), rows=total))
                    kept = offset
            count = raw.number + 1
            following = None
            if ahead is not None and count == ahead.row:
                following = next(rows, None)
                if following is None or following.begin != (ahead.line, ahead.offset):
                    marks, total = [], None
                    raise _misplaced(path, ahead, following, known)
                ahead = next(to_pass, None)
            elif known.rows is not None and count >= known.rows and _has_more(rows, count - known.rows):
                marks, total = [], None
                raise _contradicted(path, f"more than {known.rows:,}", known)
            yield raw
            raw = next(rows, None) if following is None else following
        if known.rows is not None and known.rows != count:
            marks, total = [], None
            raise _contradicted(path, f"{count:,}", known)
        total = count
    finally:
        if not known.is_told and (len(marks) > len(known.marks) or total != known.rows):
            indexes.keep(path, FileIndex(marks=tuple(marks), rows=total))


def _has_more(rows: Iterator[RawRow], behind: int) -> bool:
    """Return whether a file goes on behind the last row of its index; a job asks for no row behind that one."""
    return behind > 0 or (behind == 0 and next(rows, None) is not None)


def _misplaced(path: str, mark: Mark, found: RawRow | None, known: FileIndex) -> OrtdeployError:
    where = "the file has no such row" if found is None else f"it begins at byte {found.begin[1]:,}"
    return OrtdeployError(
        f"{path}: row {mark.row:,} begins at byte {mark.offset:,} by its index, and {where}. {_remedy(known)}"
    )


def _contradicted(path: str, found: str, known: FileIndex) -> OrtdeployError:
    return OrtdeployError(f"{path} has {found} rows, and its index says {known.rows:,}. {_remedy(known)}")


def _remedy(known: FileIndex) -> str:
    return "Restore the plan file from a copy, or make the plan again" if known.is_told else "Make the plan again"


def _check_in(path: str, offset: int) -> int:
    if isinstance(path, StoredFile):
        return 0
    with open_regular(path) as file:
        return check_of(file, offset)
