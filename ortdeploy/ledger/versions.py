"""The tables of the ledger, and the migration of those that an older version wrote.

Format version 8. A ledger of version 2 to 7 is migrated when it is opened for writing, in one transaction. It is copied
first, for an older ortdeploy, which refuses the migrated one. A reader migrates a copy in memory. Version 3 added to
version 2:

- outputs: `part_digits`, the width of the number in the names of parts (5 for outputs that version 2 began, else 8);
  `inputs_seal`, see `ledger.cells`.
- parts, merges: `sha256` and `mtime_ns` of the file as it was written, null where version 2 wrote it; `seal`.
- `begun`: the finished rows of the part in which a run ended early; at most one part an output. They are committed
  together with the rest of the part, in the transaction that removes the entry.
- `parts.worker`: always null, and not used.

Version 4 added to version 3, for outputs whose parts may be carried away or made by several deployments:

- `deployments`: what made parts, by digest: name, profile, `identity` (what results depend on) and `layout` (format and
  columns; null for parts of version 3). `parts.deployment`, `begun.deployment` and `revisions.deployment` name an
  entry.
- `revisions`: files with rows of a part that were written later than the part: `part-N.r1` and so on. `parts.revision`
  is the last such number that was given, `outputs.revision` the one in the name of the next part.
- `begun.name`: the part is whole and gets this name; the run that finds the entry completes that, see
  `running.begun_part`.
- `repairs`: input files whose failed rows were run again with changed content.

Version 5 added to version 4, for input files that change:

- `outputs.inputs_seal` is a sum, see `ledger.cells`.
- `spans`: which rows of the job a file has, of those that were run. Files that version 4 ran have none.
- `reruns`: files whose rows run again, with the state that is read, and the row before which parts hold the new
  results.
- `leaving`: rows that are to leave their parts. `withdrawn`: those that have left.
- `replacements`: the files that take the place of a part's, and the part that results, see `ledger.rewrites`.
- `forgotten`: counts of the first parts that are no longer in `parts`, because they were done and carried away. The
  numbers of parts go up, but may have gaps.

Version 6 added to version 5 the table `contents`: what input files held, see `ledger.contents`. Files that version 5
ran have no entries.

Version 7 packs the entries of `contents`, and added the index `unreadable`, of the failed rows that stand for files.

Version 8 calls `replacements` `rewrites`, and has what `retry` puts into parts there too, instead of in `merges`. What
`outputs.statistics` may hold is more, which version 7 would call damage.
"""

import os
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.contents import FileContents
from ortdeploy.facts.data import FileState
from ortdeploy.ledger.cells import (
    BEGUN_COLUMNS,
    PART_COLUMNS,
    REVISION_COLUMNS,
    insert_sealed,
    old_seal_of_inputs,
    part_of,
    revision_of,
    row_numbers,
    seal_inputs,
    seal_of,
    typed,
)
from ortdeploy.ledger.changes import as_spans, read_withdrawn
from ortdeploy.ledger.contents import put_contents
from ortdeploy.ledger.damage import FILE, undamaged
from ortdeploy.ledger.records import NewFile, Rewrite
from ortdeploy.ledger.rewrites import begin_rewrite

LEDGER_VERSION = 8
_OLDER = frozenset({2, 3, 4, 5, 6, 7})
_MERGE: Mapping[str, Any] = {
    "part": int, "temporary": str, "file": str, "bytes": int, "rows": str, "sha256": str | None, "mtime_ns": int | None,
    "revision": int, "deployment": str | None,
}  # fmt: skip

_SINCE_VERSION_3 = """
CREATE TABLE deployments (
    digest TEXT PRIMARY KEY, name TEXT NOT NULL, version TEXT, profile TEXT, signature TEXT
) WITHOUT ROWID;
CREATE TABLE begun (
    output TEXT PRIMARY KEY REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL, provenance TEXT, sha256 TEXT, mtime_ns INTEGER,
    state TEXT, seal TEXT
) WITHOUT ROWID;
"""

_SCHEMA = (
    """
CREATE TABLE outputs (
    output TEXT PRIMARY KEY, deployment TEXT NOT NULL, job TEXT NOT NULL, identity TEXT NOT NULL,
    status TEXT NOT NULL, run TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, reason TEXT,
    first_row INTEGER NOT NULL DEFAULT 0, batch_size INTEGER, statistics TEXT NOT NULL DEFAULT '{}',
    part_digits INTEGER NOT NULL DEFAULT 5, inputs_seal TEXT
) WITHOUT ROWID;
CREATE TABLE parts (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL DEFAULT '[]', provenance TEXT,
    sha256 TEXT, mtime_ns INTEGER, deployment TEXT, worker TEXT, seal TEXT,
    PRIMARY KEY (output, number)
) WITHOUT ROWID;
CREATE TABLE provenance (digest TEXT PRIMARY KEY, entry TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE inputs (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, number INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (output, path)
) WITHOUT ROWID;
CREATE TABLE merges (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, temporary TEXT NOT NULL,
    file TEXT NOT NULL, bytes INTEGER NOT NULL, rows TEXT NOT NULL, sha256 TEXT, mtime_ns INTEGER, seal TEXT,
    PRIMARY KEY (output, part)
) WITHOUT ROWID;
CREATE TABLE failures (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, row INTEGER NOT NULL, part INTEGER NOT NULL,
    entry TEXT NOT NULL, PRIMARY KEY (output, row)
) WITHOUT ROWID;
"""
    + _SINCE_VERSION_3
)

_TO_VERSION_3 = (
    """
ALTER TABLE outputs ADD COLUMN part_digits INTEGER NOT NULL DEFAULT 5;
ALTER TABLE outputs ADD COLUMN inputs_seal TEXT;
ALTER TABLE parts ADD COLUMN sha256 TEXT;
ALTER TABLE parts ADD COLUMN mtime_ns INTEGER;
ALTER TABLE parts ADD COLUMN deployment TEXT;
ALTER TABLE parts ADD COLUMN worker TEXT;
ALTER TABLE parts ADD COLUMN seal TEXT;
ALTER TABLE merges ADD COLUMN sha256 TEXT;
ALTER TABLE merges ADD COLUMN mtime_ns INTEGER;
ALTER TABLE merges ADD COLUMN seal TEXT;
"""
    + _SINCE_VERSION_3
)

_TO_VERSION_4 = """
ALTER TABLE outputs ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE parts ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE begun ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE begun ADD COLUMN deployment TEXT;
ALTER TABLE begun ADD COLUMN name TEXT;
ALTER TABLE merges ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE merges ADD COLUMN deployment TEXT;
ALTER TABLE deployments ADD COLUMN identity TEXT;
ALTER TABLE deployments ADD COLUMN layout TEXT;
CREATE TABLE revisions (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, revision INTEGER NOT NULL,
    file TEXT NOT NULL, bytes INTEGER NOT NULL, rows TEXT NOT NULL, sha256 TEXT, mtime_ns INTEGER, deployment TEXT,
    seal TEXT, PRIMARY KEY (output, part, revision)
) WITHOUT ROWID;
CREATE TABLE repairs (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, sha256 TEXT, before TEXT, run TEXT NOT NULL, PRIMARY KEY (output, path, size, mtime_ns)
) WITHOUT ROWID;
"""
_TO_VERSION_5 = """
CREATE TABLE spans (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL, seal INTEGER, PRIMARY KEY (output, path)
) WITHOUT ROWID;
CREATE TABLE reruns (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, through INTEGER NOT NULL, seal TEXT, PRIMARY KEY (output, path)
) WITHOUT ROWID;
CREATE TABLE leaving (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, first_row INTEGER NOT NULL, rows INTEGER NOT NULL,
    seal TEXT, PRIMARY KEY (output, first_row)
) WITHOUT ROWID;
CREATE TABLE withdrawn (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL, seal TEXT, PRIMARY KEY (output, first_row)
) WITHOUT ROWID;
CREATE TABLE replacements (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, entry TEXT NOT NULL, seal TEXT,
    PRIMARY KEY (output, part)
) WITHOUT ROWID;
CREATE TABLE forgotten (
    output TEXT PRIMARY KEY REFERENCES outputs ON DELETE CASCADE, parts INTEGER NOT NULL, rows INTEGER NOT NULL,
    committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL, withdrawn INTEGER NOT NULL, seal TEXT
) WITHOUT ROWID;
"""
_TO_VERSION_7 = """
CREATE TABLE contents (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, files INTEGER NOT NULL,
    entries BLOB NOT NULL, seal INTEGER, PRIMARY KEY (output, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unreadable ON failures (output, row) WHERE instr(entry, '"unreadable-file"');
"""
_TO_VERSION_8 = """
ALTER TABLE replacements RENAME TO rewrites;
"""
_STEPS = {2: _TO_VERSION_3, 3: _TO_VERSION_4, 4: _TO_VERSION_5, 6: _TO_VERSION_7, 7: _TO_VERSION_8}
"""Statements by the last version that needs them."""
_NEW = _SCHEMA + _TO_VERSION_4 + _TO_VERSION_5 + _TO_VERSION_7 + _TO_VERSION_8 + "DROP TABLE merges;"
_NEW_IN_VERSION_4 = frozenset({"revision", "deployment", "name"})


def bring_up_to_date(connection: sqlite3.Connection, keep: Callable[[int], None] = lambda _: None) -> None:
    """Make the tables, or migrate older ones, in one transaction, because a kill may come at any moment.

    An older ledger is kept first by `keep`, which gets its version; nobody else writes meanwhile.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection)  # another run may have been quicker
        if version in _OLDER:
            keep(version)
        steps = [step for last, step in _STEPS.items() if last >= version] if version else [_NEW]
        if version == 6:  # noqa: PLR2004  the one that has an entry a row
            connection.execute("ALTER TABLE contents RENAME TO old_contents")
        for statement in "".join(steps).split(";"):
            connection.execute(statement)
        with undamaged():
            if version == 3:  # noqa: PLR2004  the one whose seals are over fewer cells
                _unseal_version_3(connection)
            if version in {3, 4}:
                _unseal_inputs(connection)
            if version == 6:  # noqa: PLR2004  as above
                _pack_contents(connection)
            _seal_all(connection)
            if version in _OLDER:
                _rewrite_merges(connection)
        connection.execute(f"PRAGMA user_version = {LEDGER_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _unseal_version_3(db: sqlite3.Connection) -> None:
    """Remove the seals that fit what version 3 wrote. One that does not fit stays, and never fits again."""
    keys = {"parts": ("output", "number"), "begun": ("output",), "merges": ("output", "part")}
    columns = {"parts": PART_COLUMNS, "begun": BEGUN_COLUMNS, "merges": _MERGE}
    for table, key in keys.items():
        old = [name for name in columns[table] if name not in _NEW_IN_VERSION_4]
        where = " AND ".join(f"{name} = ?" for name in key)
        rows = db.execute(f"SELECT {', '.join((*key, *old))}, seal FROM {table}").fetchall()  # noqa: S608  ours
        for row in rows:
            named, cells, seal = row[: len(key)], row[len(key) : -1], row[-1]
            new = None if seal is not None and seal_of(*cells) == seal else seal or "none"
            db.execute(f"UPDATE {table} SET seal = ? WHERE {where}", (new, *named))  # noqa: S608  ours


def _unseal_inputs(db: sqlite3.Connection) -> None:
    """Remove the seals over input files that fit. One that does not fit stays, and never fits again."""
    for output, seal in db.execute("SELECT output, inputs_seal FROM outputs").fetchall():
        if seal is not None and seal == old_seal_of_inputs(db, output):
            db.execute("UPDATE outputs SET inputs_seal = NULL WHERE output = ?", (output,))


def _pack_contents(db: sqlite3.Connection) -> None:
    """Pack what version 6 knows of the content of files. A pack without a seal, which never fits, stands for damage."""
    query = "SELECT path, size, mtime_ns, digest, seal FROM old_contents WHERE output = ? ORDER BY path"
    for (output,) in db.execute("SELECT DISTINCT output FROM old_contents").fetchall():
        rows = db.execute(query, (output,))
        sealed = (row for row in rows if row[4] == zlib.crc32(repr(row[1:4]).encode(), zlib.crc32(row[0])))
        contents = FileContents.of((FileState(os.fsdecode(row[0]), *row[1:3]), row[3]) for row in sealed)
        put_contents(db, output, contents)
        (all_of_them,) = db.execute("SELECT COUNT(*) FROM old_contents WHERE output = ?", (output,)).fetchone()
        if len(contents) < all_of_them:
            db.execute("INSERT INTO contents VALUES (?, -1, 0, x'', NULL)", (output,))
    db.execute("DROP TABLE old_contents")


def _seal_all(db: sqlite3.Connection) -> None:
    """Seal the rows without a seal, which older versions wrote."""
    for table, columns in (("parts", PART_COLUMNS), ("begun", BEGUN_COLUMNS)):
        query = f"SELECT output, {', '.join(columns)} FROM {table} WHERE seal IS NULL"  # noqa: S608  ours
        for output, *cells in db.execute(query).fetchall():
            insert_sealed(db, table, output, columns, tuple(cells))
    for (output,) in db.execute("SELECT output FROM outputs WHERE inputs_seal IS NULL").fetchall():
        seal_inputs(db, output)


def _rewrite_merges(db: sqlite3.Connection) -> None:
    """Note as rewrites what a killed retry of an older version was putting into parts.

    What is damaged becomes a rewrite without a seal, which never fits.
    """
    query = f"SELECT output, seal, {', '.join(_MERGE)} FROM merges"  # noqa: S608  ours
    for output, seal, *cells in db.execute(query).fetchall():
        try:
            one = _as_rewrite(db, output, cells, seal)
            begin_rewrite(db, output, one, one.part)
        except (ValueError, TypeError):
            db.execute("INSERT OR REPLACE INTO rewrites VALUES (?, ?, '', NULL)", (output, cells[0]))
    db.execute("DROP TABLE merges")


def _as_rewrite(db: sqlite3.Connection, output: str, merge: Sequence[Any], seal: str | None) -> Rewrite:
    """Return a merge as a rewrite: in place of its part's file, or with a revision beside it.

    The file of a revision may have been carried away; whether the output allows that, the ledger does not know. Raises
    ValueError or TypeError if the merge is not what was written.
    """
    if seal not in {None, seal_of(*merge)}:
        raise ValueError(seal)
    values = typed(_MERGE, merge)
    rows, number, revision = row_numbers(values["rows"]), values["part"], values["revision"]
    query = f"SELECT {', '.join(PART_COLUMNS)} FROM parts WHERE output = ? AND number = ?"  # noqa: S608  ours
    part = typed(PART_COLUMNS, db.execute(query, (output, number)).fetchone())
    query = f"SELECT {', '.join(REVISION_COLUMNS)} FROM revisions WHERE output = ? AND part = ? ORDER BY revision"  # noqa: S608  ours
    later = db.execute(query, (output, number)).fetchall()
    file = {name: values[name] for name in ("file", "bytes", "sha256", "mtime_ns")}
    if revision:
        later.append(tuple(values[name] for name in REVISION_COLUMNS))
    else:
        part |= file
    return Rewrite(
        part=part_of(
            part,
            committed=part["committed"] + len(rows),
            failed=part["failed"] - len(rows),
            revisions=tuple(revision_of(typed(REVISION_COLUMNS, cells)) for cells in later),
            withdrawn=tuple(read_withdrawn(db, output).get(number, ())),
        ),
        files=(NewFile(temporary=values["temporary"], **file),),
        removed=(),
        spans=as_spans(rows),
        may_be_gone=revision > 0,
    )


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a ledger; 0 if it has no tables yet. Raises OrtdeployError for an unknown version."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in {0, LEDGER_VERSION} | _OLDER:
        raise OrtdeployError(
            f"the ledger {FILE} has format version {version}; this ortdeploy writes {LEDGER_VERSION}. Use "
            "the ortdeploy that wrote it, or a newer one"
        )
    return version
