"""The ledger's table of what input files held: digests of those whose rows are accounted for.

A file that is copied again, or only touched, has another time and the same content, so its rows need not run again. The
digest stands beside the size and the time at which the file was read. Files that were too large, or that changed
meanwhile, have none; then the time alone decides.

The entries are packed a thousand at a time, for they are only added, and read all together. One is of use as long as
the ledger knows its file in that state; once most are of none, the others are packed anew. The functions work on an
open connection, within their caller's transaction.
"""

import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping

from ortdeploy.facts.contents import FileContent, FileContents
from ortdeploy.facts.data import FileState
from ortdeploy.files.compact_list import OF_A_BLOCK
from ortdeploy.files.digests import shortened
from ortdeploy.ledger.damage import undamaged

TABLE = "contents"

_SPARE = 1000
_SMALL = 100
"""Packs that are let stand, however small; and how many entries a pack has at least, on average, if there are more."""


def put_contents(db: sqlite3.Connection, output: str, contents: Iterable[FileContent]) -> None:
    """Note the digests of files."""
    packed = FileContents.of(contents)
    if packed:
        _append(db, output, packed)
        if _are_worn(db, output):
            pack_anew(db, output)


def read_contents(db: sqlite3.Connection, output: str) -> Mapping[FileState, bytes]:
    """Return the digests of files by the states in which they were read. Raises ValueError for damaged ones."""
    return dict(_entries(db, output))


def read_repaired(db: sqlite3.Connection, output: str) -> dict[FileState, bytes]:
    """Return the digests of repaired files by the states in which their failed rows ran again. Raises ValueError."""
    query = "SELECT path, size, mtime_ns, sha256 FROM repairs WHERE output = ? AND sha256 IS NOT NULL"
    rows = db.execute(query, (output,)).fetchall()
    return {FileState(os.fsdecode(path), *state): shortened(sha256) for path, *state, sha256 in rows}


def _are_worn(db: sqlite3.Connection, output: str) -> bool:
    """Return whether most entries may be of no use, or most packs small."""
    query = "SELECT COUNT(*), SUM(files) FROM contents WHERE output = ?"
    packs, noted = db.execute(query, (output,)).fetchone()
    (known,) = db.execute("SELECT COUNT(*) FROM inputs WHERE output = ?", (output,)).fetchone()
    return bool(packs > _SMALL + noted // _SMALL or noted > 2 * known + _SPARE)


def pack_anew(db: sqlite3.Connection, output: str) -> None:
    """Drop the entries of files that the ledger does not know in their state. Raises OrtdeployError for damage."""
    with undamaged():
        useful = FileContents.of(one for one in _entries(db, output) if _is_known(db, output, one[0]))
    db.execute("DELETE FROM contents WHERE output = ?", (output,))
    _append(db, output, useful)


def _append(db: sqlite3.Connection, output: str, packed: FileContents) -> None:
    query = "SELECT COALESCE(MAX(number) + 1, 0) FROM contents WHERE output = ?"
    (first,) = db.execute(query, (output,)).fetchone()
    rows = []
    for place, block in enumerate(packed.blocks):
        files = min(OF_A_BLOCK, len(packed) - place * OF_A_BLOCK)
        rows.append((output, first + place, files, block, _seal(files, block)))
    db.executemany("INSERT INTO contents VALUES (?, ?, ?, ?, ?)", rows)


def _entries(db: sqlite3.Connection, output: str) -> Iterator[FileContent]:
    """Yield all entries; of one file in one state there may be several. Raises ValueError for damaged ones."""
    query = "SELECT files, entries, seal FROM contents WHERE output = ? ORDER BY number"
    for files, entries, seal in db.execute(query, (output,)):
        if not isinstance(entries, bytes) or not isinstance(files, int) or seal != _seal(files, entries):
            raise ValueError("the digest of an input file is not what was written")
        yield from FileContents([entries], files)


def _is_known(db: sqlite3.Connection, output: str, state: FileState) -> bool:
    query = "SELECT size, mtime_ns FROM inputs WHERE output = ? AND path = ?"
    found: tuple[int, int] | None = db.execute(query, (output, os.fsencode(state.path))).fetchone()
    return found == state[1:]


def _seal(files: int, entries: bytes) -> int:
    return zlib.crc32(entries, files)
