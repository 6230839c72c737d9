"""Forgets the first parts of an output, once they have been done and carried away for as long as the manifest says.

Their counts remain, so that totals, row numbers and names of parts continue. The functions work on an open connection,
within their caller's transaction.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from ortdeploy.ledger.cells import insert_sealed, seal_inputs, sealed_rows
from ortdeploy.ledger.changes import forget_files
from ortdeploy.ledger.contents import pack_anew
from ortdeploy.ledger.records import Forgotten, Part

BEGUN_WITH = "begun_with"
"""The key in a part's origin that names the origin of its first rows, if another run began the part."""

_COLUMNS: Mapping[str, Any] = dict.fromkeys(to_builtins(Forgotten()), int)


def read_forgotten(db: sqlite3.Connection, output: str) -> Forgotten:
    """Return the counts of an output's forgotten parts. Raises ValueError, TypeError."""
    return Forgotten(**next(sealed_rows(db, "forgotten", output, _COLUMNS, "what was forgotten"), {}))


def forget_parts(db: sqlite3.Connection, output: str, parts: Sequence[Part], files: Iterable[str]) -> None:
    """Forget the first parts of an output with their failed rows, and the input files whose rows they had."""
    before = read_forgotten(db, output)
    more = Forgotten(
        parts=len(parts),
        rows=sum(part.rows for part in parts),
        committed=sum(part.committed for part in parts),
        failed=sum(part.failed for part in parts),
        skipped=sum(part.skipped for part in parts),
        withdrawn=sum(part.withdrawn_rows for part in parts),
    )
    insert_sealed(
        db, "forgotten", output, _COLUMNS, tuple(getattr(before, name) + getattr(more, name) for name in _COLUMNS)
    )
    numbers = [(output, part.number) for part in parts]
    for table, column in (("parts", "number"), ("revisions", "part"), ("failures", "part"), ("withdrawn", "part")):
        db.executemany(f"DELETE FROM {table} WHERE output = ? AND {column} = ?", numbers)  # noqa: S608  ours
    forget_files(db, output, files, "inputs", "repairs")
    seal_inputs(db, output)
    pack_anew(db, output)
    forget_origins(db)


def forget_origins(db: sqlite3.Connection) -> None:
    """Forget the origins that no part refers to any more."""
    query = "SELECT provenance FROM parts UNION SELECT provenance FROM begun"
    used = {digest for (digest,) in db.execute(query) if digest is not None}
    entries = dict(db.execute("SELECT digest, entry FROM provenance").fetchall())
    wanted = [digest for digest in used if digest in entries]
    for digest in wanted:
        before = json.loads(entries[digest]).get(BEGUN_WITH)
        wanted += [before] if before in entries and before not in wanted else []
    db.executemany("DELETE FROM provenance WHERE digest = ?", [(digest,) for digest in entries.keys() - wanted])
