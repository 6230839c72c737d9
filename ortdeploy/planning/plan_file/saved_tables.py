"""Tables beside a plan file, for lists that are too long for the file itself, such as a million input files.

A table is JSON lines, one for each file of the list, compressed by gzip. The plan has its name, the SHA-256 of its
bytes and the number of its lines. The digest is part of the name, so no table takes the place of another plan's.
"""

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import Hashing, open_whole, sync_folder
from ortdeploy.files.compact_list import CompactList, CompactListWriter
from ortdeploy.files.digests import is_digest, open_file_digest
from ortdeploy.files.names import is_file
from ortdeploy.files.opening import open_regular

if TYPE_CHECKING:
    from gzip import GzipFile

LONG = 1000
"""The most files that a list within a plan file has."""
LONG_TEXT = 64 * 1024
"""The most bytes that packed lines within a plan file have."""

MAX_UNPACKED = 4 * 1024**3
"""The most bytes of a table's lines: about thirty million files."""
MAX_LINE = 64 * 1024**2

_DAMAGED = "they are damaged"
_LARGEST = 2**63 - 1
_IN_NO_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
"""NUL, and surrogates that stand for no byte of a file name."""
_AT_ONCE = 1024
_LEVEL = 6  # level 1 makes tables half as large again, and most of the time goes into the JSON


class Table(Struct, frozen=True, kw_only=True):
    """A table as its plan names it: the file in the plan's folder, the SHA-256 of its bytes, the number of lines."""

    table: str
    sha256: str
    files: int


class SavedFile(Struct, frozen=True, kw_only=True):
    """An input file by its path from the manifest; `sha256` is None if only size and time are known."""

    path: str
    size: int
    mtime_ns: int
    sha256: str | None


class SavedFiles(CompactList):
    """An unchangeable list of saved files; a million take some fifty megabytes."""

    NUMBERS = 2

    @staticmethod
    def cells_of(path: str, size: int, mtime_ns: int, sha256: str | None) -> tuple[str, int, int]:
        """Return a file as the cells of its entry; its digest stands before its path."""
        return f"{sha256 or ''}:{path}", size, mtime_ns

    def make(self, cells: tuple[Any, ...]) -> SavedFile:
        """Return the file that an entry is."""
        name, size, mtime_ns = cells
        sha256, _, path = name.partition(":")
        return SavedFile(path=path, size=size, mtime_ns=mtime_ns, sha256=sha256 or None)


def pack_lines(lines: Iterable[Any]) -> Iterator[bytes]:
    """Yield the bytes of a table, whose lines are these JSON values. Raises OrtdeployError if they are too long."""
    packing = zlib.compressobj(_LEVEL, wbits=31)  # gzip, without a time: equal lists have equal tables
    left, room = iter(lines), MAX_UNPACKED
    while some := list(islice(left, _AT_ONCE)):
        texts = [json.dumps(one, separators=(",", ":")) + "\n" for one in some]
        room -= sum(map(len, texts))  # JSON is ASCII here
        if room < 0 or len(max(texts, key=len)) > MAX_LINE:
            raise OrtdeployError(
                f"a plan file cannot hold a list of input files as long as this one: its table would have more than "
                f"{MAX_UNPACKED:,} bytes. Plan some of the files at a time, by a narrower path: in the manifest"
            )
        yield packing.compress("".join(texts).encode())
    yield packing.flush()


def write_table(plan: Path, what: str, pieces: Iterable[bytes], files: int) -> dict[str, Any]:
    """Write a table beside a plan file, and return what the plan says of it. Raises OSError, OrtdeployError."""
    draft = plan.with_name(f".{plan.name}.{what}")  # the name that it gets has the digest
    with open_whole(draft) as file:
        hashing = Hashing(file)
        hashing.writelines(pieces)
        sha256 = hashing.written().sha256
    named = plan.with_name(f"{plan.stem}.{what}-{sha256[:12]}.gz")
    draft.replace(named)
    sync_folder(named.parent)
    return {"table": named.name, "sha256": sha256, "files": files}


def within_or_beside(plan: Path, what: str, packed: bytes, files: int) -> Any:
    """Return packed lines as text of the plan file, or if that is too long, as a table beside it.

    Raises OSError.
    """
    if len(packed) <= LONG_TEXT:
        return b64encode(packed).decode()
    return write_table(plan, what, [packed], files)


def as_table(data: Any) -> Any:
    """Return what a plan file says of a table as such; text as it is."""
    return Table(**data) if isinstance(data, Mapping) else data


def read_lines(plan: Path, packed: str | Table, files: int) -> Iterator[Any]:
    """Yield the JSON values of packed lines, or of a table beside a plan file: one for each of the files.

    Raises OrtdeployError if they are not there, not those of the plan, or not a list for this number of files.
    """
    if isinstance(packed, str):
        try:
            raw = b64decode(packed, validate=True)
        except ValueError as error:
            raise OrtdeployError(f"{_DAMAGED}. Make the plan again") from error
        yield from _lines(BytesIO(raw), files, _DAMAGED)
        return
    with _opened(plan, packed) as file:
        yield from _lines(file, files, f"its table {_shown(packed.table)} is no list of {files:,} files")


def _opened(plan: Path, table: Table) -> BinaryIO:
    """Open a table, which is the one that the plan means. Raises OrtdeployError."""
    path = plan.parent / table.table
    shown = _shown(table.table)
    if Path(table.table).name != table.table:
        raise OrtdeployError(f"its table is {shown}, and a plan file names only tables beside it. Make the plan again")
    if not is_file(path):
        raise OrtdeployError(
            f"its table {shown} is not in {plan.parent.absolute()}. A plan of many files is saved with a table beside "
            "it: copy both, or make the plan again"
        )
    try:
        file = open_regular(path)
        try:
            found = open_file_digest(file)
            file.seek(0)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise OrtdeployError(f"its table {shown} cannot be read: {error.strerror}") from error
    if found == table.sha256:
        return file
    file.close()
    raise OrtdeployError(
        f"its table {shown} is damaged, or another plan's: its SHA-256 begins with {found[:12]}, and the plan says "
        f"{table.sha256[:12]}. Copy the table that was saved with the plan, or make the plan again"
    )


def _lines(file: BinaryIO, files: int, wrong: str) -> Iterator[Any]:
    """Yield the values of a table's lines. Raises OrtdeployError."""
    from gzip import BadGzipFile, GzipFile  # noqa: PLC0415  only for a plan with tables

    try:
        with GzipFile(fileobj=file) as unpacked:
            for line in _texts(unpacked, files):
                yield json.loads(line)
    except (ValueError, RecursionError, EOFError, zlib.error, BadGzipFile) as error:
        raise OrtdeployError(f"{wrong}. Make the plan again") from error
    except OSError as error:
        raise OrtdeployError(f"its table cannot be read: {error.strerror}") from error


def _texts(unpacked: "GzipFile", files: int) -> Iterator[str]:
    """Yield the lines of a table. Raises ValueError if they are more or fewer than its files, or too long."""
    room = MAX_UNPACKED
    for _ in range(files):
        line = unpacked.readline(min(room, MAX_LINE))
        room -= len(line)
        if not line.endswith(b"\n"):
            raise ValueError(line[-1:])
        yield line.decode("ascii")
    if unpacked.read(1):
        raise ValueError(files)


def as_files(lines: Iterable[Any]) -> SavedFiles:
    """Return the lines of a table of files as a list. Raises OrtdeployError where one is none."""
    packer = CompactListWriter(SavedFiles)
    for number, line in enumerate(lines, start=1):
        if not _is_file(line):
            raise OrtdeployError(
                f"line {number:,} of its table is not path, size, time and SHA-256 of a file. Make the plan again"
            )
        packer.add(SavedFiles.cells_of(*line))
    files: SavedFiles = packer.packed()
    return files


def _is_file(line: Any) -> bool:
    if not isinstance(line, list) or [type(one) for one in line[:3]] != [str, int, int] or len(line) != 4:  # noqa: PLR2004
        return False
    path, size, mtime_ns, sha256 = line
    has_digest = sha256 is None or is_digest(sha256)
    fits = 0 <= size <= _LARGEST and -_LARGEST - 1 <= mtime_ns <= _LARGEST
    return has_digest and fits and _IN_NO_NAME.search(path) is None


def _shown(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
