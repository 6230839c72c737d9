"""The ledger's table of what input files held: digests of those whose rows are all accounted for.

A file that is copied again, or only touched, has another time and the same content, so its rows need not run again. The
digest stands beside the size and the time at which the file was read. Files that were too large, or that changed
meanwhile, have none; then the time alone decides. The functions work on an open connection, within their caller's
transaction.
"""

import os
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from ortdeploy.facts.data import FileContent, FileState

TABLE = "contents"


def put_contents(db: sqlite3.Connection, output: str, contents: Iterable[FileContent]) -> None:
    """Note the digests of files, in place of what was noted of them."""
    rows = ((output, os.fsencode(path), size, mtime_ns, digest) for (path, size, mtime_ns), digest in contents)
    db.executemany(
        "INSERT OR REPLACE INTO contents VALUES (?, ?, ?, ?, ?, ?)", ((*row, _seal(*row[1:])) for row in rows)
    )


def read_contents(db: sqlite3.Connection, output: str) -> Mapping[FileState, bytes]:
    """Return the digests of files by the states in which they were read. Raises ValueError for damaged ones."""
    found = {}
    query = "SELECT path, size, mtime_ns, digest, seal FROM contents WHERE output = ?"
    for *cells, seal in db.execute(query, (output,)):
        if seal != _seal(*cells):
            raise ValueError("the digest of an input file is not what was written")
        path, size, mtime_ns, digest = cells
        found[FileState(os.fsdecode(path), size, mtime_ns)] = digest
    return found


def _seal(path: bytes, *cells: Any) -> int:
    """Return the seal over a row: a checksum, which is short, for there may be a hundred thousand rows."""
    return zlib.crc32(repr(cells).encode(), zlib.crc32(path))
