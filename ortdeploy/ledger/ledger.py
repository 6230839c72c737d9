"""The memory of all runs in SQLite: outputs, committed parts, failed rows. Reports are derived from it.

Commit protocol, as measured against power cuts (a part is in exactly one of these states at any moment):

1. the part is written under a temporary name and fsynced;
2. it is renamed to its final name, and its folder is fsynced;
3. the ledger commits the part and its failed rows in one transaction, with synchronous=EXTRA: SQLite also syncs the
   folder after it has deleted its journal. With FULL a power cut may bring the journal back, which undoes the commit.

Recovery: a temporary file is deleted; a final file that the ledger does not know is written again, for parts are
numbered as they are committed. After a kill that gives the same bytes, for what a part holds is deterministic.

Format version 4. A ledger of version 2 or 3 is migrated when it is opened for writing, in one transaction; who only
reads one migrates a copy in memory. What version 3 has more than version 2:

- outputs: `part_digits`, the width of the number in the names of parts (5 for outputs that version 2 began, else 8);
  `inputs_seal`, see below.
- parts, merges: `sha256` and `mtime_ns` of the file as it was written, null where version 2 wrote it; `seal`.
- `begun`: what is through of the part at which a run ended early, of one part an output at most. None of its rows is
  committed; they become so together with the rest of the part, in the transaction that takes the entry away.
- Room that nothing fills yet, null: `parts.worker` (who made it).

What version 4 has more than version 3, for outputs whose parts may be carried away or made by several deployments:

- `deployments`: what made parts, by digest: name, profile, `identity` (what results depend on) and `layout` (format and
  columns; null of what ran before). `parts.deployment`, `begun.deployment` and `revisions.deployment` name an entry.
- `revisions`: files of rows that belong to a part and were written after it: `part-N.r1` and so on. `parts.revision` is
  the last such number that was given, `outputs.revision` the one for the name of the part that comes next.
- `begun.name`: the part is whole and gets this name; whoever finds the entry completes that, see `begun_part`.
- `repairs`: input files whose failed rows were run again with changed content.

A seal is a digest over the other cells of a row (`inputs_seal`: over `first_row` and all input files of the output),
so that a cell that is not what was written is noticed. It guards against damage, not against an attacker: what a cell
may say at all is checked too, see `ledger_check`.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState, KnownFile
from ortdeploy.files.atomic import make_durable_folder
from ortdeploy.files.digests import file_digest
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.results.rows import FailedRow

LEDGER_VERSION = 4
FILE = "state.db"
MARKER = "_output.json"
"""The file in an output folder that names its ledger."""

_MOST_OF_A_MARKER = 64 * 1024
PATIENCE = 60.0
"""Seconds in which another run that writes into the same ledger is done with its transaction."""

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

BEGUN_WITH = "begun_with"
"""What says of a part's origin which other one its first rows have, where a run went on with what another had begun."""

_GONE = 2
"""What `inputs.done` is of a file that was run and is no longer there; 1 while it is."""

PART_DIGITS = 8
"""Width of the number in the names of parts, of outputs that are begun from now on."""


def part_name(number: int, digits: int, suffix: str, revision: int = 0) -> str:
    """Return the name of a part's file, or of one that holds rows of a part and was written later."""
    return f"part-{number:0{digits}d}{f'.r{revision}' if revision else ''}{suffix}"


def output_key(folder: Path, state_dir: Path) -> str:
    """Return an output folder's way from the state directory, with forward slashes."""
    return os.path.relpath(folder.absolute(), state_dir.absolute()).replace(os.sep, "/")


def output_file(state_dir: Path, folder: str, output: str, suffix: str) -> Path:
    """Return a file of one output's own in a folder of the state directory, whatever characters its name has."""
    return state_dir / folder / f"{hashlib.sha256(output.encode()).hexdigest()[:16]}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A file with rows of a part that was written after it; its rows replace those of equal number."""

    revision: int
    file: str
    bytes: int
    rows: tuple[int, ...]
    sha256: str | None = None
    mtime_ns: int | None = None
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A committed range of a job's rows; `file` is None when none of them gave a result when it was written.

    `skipped_rows` are the numbers of those that are neither in a file nor failed; `provenance` is the digest of what
    the part was made from, `deployment` that of what made it. `revisions` hold rows that were written later, `revision`
    is the last number that was given to one.
    """

    number: int
    start: int
    rows: int
    committed: int
    failed: int
    skipped: int
    file: str | None
    bytes: int
    skipped_rows: tuple[int, ...] = ()
    provenance: str | None = None
    sha256: str | None = None
    mtime_ns: int | None = None
    deployment: str | None = None
    revision: int = 0
    revisions: tuple[Revision, ...] = ()

    @property
    def files(self) -> tuple["Part | Revision", ...]:
        """What says what the files of this part are."""
        return (*(() if self.file is None else (self,)), *self.revisions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A file that takes a part's place, with the rows that it holds and the part did not.

    With a `revision`, it takes no place: it lies beside the part, and holds these rows alone.
    """

    part: int
    temporary: str
    file: str
    bytes: int
    rows: tuple[int, ...]
    sha256: str | None = None
    mtime_ns: int | None = None
    revision: int = 0
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The rows that are through of a part at which a run ended early; the next run goes on behind them.

    `part` is what was through, in a file with a hidden name, if any row gave a result. `state` is what the last row
    hands on, of a pipeline that has some. With a `name` the part is whole, and its file is to be called so.
    """

    part: Part
    state: str | None = None
    name: str | None = None

    @property
    def end(self) -> int:
        """The row with which the next run goes on."""
        return self.part.start + self.part.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """What the ledger knows of one output folder. `status` is one of STATUSES.

    `first_row` rows came from input files of runs that are finished. `batch_size` is what `auto` has found.
    `part_digits` is the width of the number in the names of parts. `begun` is what is through of the next part, and
    `revision` goes into its name. `noted_failures` are all rows that stand in `_failed.jsonl`, also of a part that was
    given up and runs again.
    """

    output: str
    deployment: str
    job: str
    identity: Mapping[str, str]
    status: str
    run: str
    started: str
    ended: str | None
    reason: str | None
    first_row: int
    batch_size: int | None
    statistics: Mapping[str, Any]
    part_digits: int
    parts: tuple[Part, ...]
    begun: Begun | None = None
    noted_failures: int = 0
    revision: int = 0

    @property
    def rows(self) -> int:
        """Rows of the input that committed parts cover."""
        return sum(part.rows for part in self.parts)

    @property
    def failed(self) -> int:
        """Rows that failed, of committed parts and of the one that was begun."""
        return sum(part.failed for part in self._all_parts)

    @property
    def origins(self) -> set[str]:
        """The digests of what committed parts and the one that was begun were made from."""
        return {part.provenance for part in self._all_parts if part.provenance}

    @property
    def makers(self) -> tuple[str, ...]:
        """The digests of the deployments that made committed parts, in the order of the parts."""
        made = [part.deployment for part in self._all_parts]
        made += [one.deployment for part in self.parts for one in part.revisions]
        return tuple(dict.fromkeys(one for one in made if one is not None))

    @property
    def _all_parts(self) -> tuple[Part, ...]:
        return self.parts if self.begun is None else (*self.parts, self.begun.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBefore:
    """How often a failed row was tried, and where it is: in which file, as which row of it, and of which content."""

    attempts: int
    path: str = ""
    file_row: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """An input file as it was when its failed rows were run again, with the digests of its content then and before."""

    state: FileState
    sha256: str | None
    before: str | None


_OF_OUTPUTS = ("parts", "begun", "failures", "inputs", "merges", "revisions", "repairs")

STATUSES = ("running", "done", "failed", "interrupted", "paused")

_OUTPUT_COLUMNS: Mapping[str, Any] = {
    "output": str, "deployment": str, "job": str, "identity": str, "status": str, "run": str, "started": str,
    "ended": str | None, "reason": str | None, "first_row": int, "batch_size": int | None, "statistics": str,
    "part_digits": int, "revision": int,
}  # fmt: skip
_PART_COLUMNS: Mapping[str, Any] = {
    "number": int, "start": int, "rows": int, "committed": int, "failed": int, "skipped": int, "file": str | None,
    "bytes": int, "skipped_rows": str, "provenance": str | None, "sha256": str | None, "mtime_ns": int | None,
    "deployment": str | None, "revision": int,
}  # fmt: skip
_BEGUN_COLUMNS: Mapping[str, Any] = {**_PART_COLUMNS, "state": str | None, "name": str | None}
MERGE_COLUMNS: Mapping[str, Any] = {
    "part": int, "temporary": str, "file": str, "bytes": int, "rows": str, "sha256": str | None, "mtime_ns": int | None,
    "revision": int, "deployment": str | None,
}  # fmt: skip
_REVISION_COLUMNS: Mapping[str, Any] = {
    "part": int, "revision": int, "file": str, "bytes": int, "rows": str, "sha256": str | None, "mtime_ns": int | None,
    "deployment": str | None,
}  # fmt: skip
_DEPLOYMENT_COLUMNS: Mapping[str, Any] = {"name": str, "profile": str | None, "identity": str, "layout": str}
_NEW_IN_VERSION_4 = frozenset({"revision", "deployment", "name"})


def _typed(columns: Mapping[str, Any], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row's cells by column. Raises TypeError if one has another type than was written."""
    values = dict(zip(columns, row, strict=True))
    for name, value in values.items():
        if not isinstance(value, columns[name]):
            raise TypeError(f"{name} is {value!r}")
    return values


def _seal(*cells: Any) -> str:
    """Return a digest over cells, by which it is noticed that one is not what was written."""
    return hashlib.sha256(json.dumps(cells, separators=(",", ":")).encode()).hexdigest()[:32]


def _unsealed(cells: Sequence[Any], what: str) -> Sequence[Any]:
    """Return the cells of a row whose last one is its seal, without it. Raises ValueError if that does not fit."""
    if _seal(*cells[:-1]) != cells[-1]:
        raise ValueError(f"{what} is not what was written")
    return cells[:-1]


def _numbers(text: str) -> tuple[int, ...]:
    """Return numbers of rows, in order. Raises ValueError if they are none."""
    found = json.loads(text)
    if not isinstance(found, list) or any(type(row) is not int for row in found):
        raise ValueError(f"{text[:60]!r} does not name rows")
    return tuple(found)


def _time(text: str | None) -> None:
    """Raise ValueError if a text is no time."""
    if text is not None:
        datetime.fromisoformat(text)


class Ledger:
    """An open ledger. Every method that writes commits before it returns. Raises OrtdeployError."""

    def __init__(self, connection: sqlite3.Connection, state_dir: Path) -> None:
        """Take a connection whose tables are there."""
        self._connection = connection
        self._state_dir = state_dir

    @property
    def state_dir(self) -> Path:
        """Where the ledger lies."""
        return self._state_dir

    def key(self, folder: Path) -> str:
        """Return an output folder's name in the ledger: its way from the state directory, so that both can move."""
        return output_key(folder, self._state_dir)

    def output(self, output: str) -> OutputRecord | None:
        """Return what is known of an output folder."""
        with undamaged():
            query = f"SELECT {', '.join(_OUTPUT_COLUMNS)} FROM outputs WHERE output = ?"  # noqa: S608  ours
            row = self._connection.execute(query, (output,)).fetchone()
            return self._record(row) if row else None

    def outputs(self) -> tuple[OutputRecord, ...]:
        """Return every output that the ledger knows."""
        with undamaged():
            query = f"SELECT {', '.join(_OUTPUT_COLUMNS)} FROM outputs ORDER BY output"  # noqa: S608  ours
            rows = self._connection.execute(query).fetchall()
            return tuple(self._record(row) for row in rows)

    def _record(self, row: Sequence[Any]) -> OutputRecord:
        values = _typed(_OUTPUT_COLUMNS, row)
        identity, statistics = json.loads(values["identity"]), json.loads(values["statistics"])
        if not isinstance(identity, dict) or not isinstance(statistics, dict):
            raise TypeError("the identity or the statistics of an output are none")
        if values["status"] not in STATUSES:
            raise ValueError(f"the status of an output is {values['status']!r}")
        _time(values["started"])
        _time(values["ended"])
        known = {"identity": identity, "statistics": statistics, "parts": self._parts(values["output"])}
        query = "SELECT COUNT(*) FROM failures WHERE output = ?"
        (noted,) = self._connection.execute(query, (values["output"],)).fetchone()
        return OutputRecord(**{**values, **known, "begun": self._begun(values["output"]), "noted_failures": noted})

    def _parts(self, output: str) -> tuple[Part, ...]:
        query = f"SELECT {', '.join(_PART_COLUMNS)}, seal FROM parts WHERE output = ? ORDER BY number"  # noqa: S608  ours
        revisions = self._revisions(output)
        found = []
        for row in self._connection.execute(query, (output,)):
            values = _typed(_PART_COLUMNS, _unsealed(row, f"what stands there of part {row[0]}"))
            later = tuple(revisions.pop(values["number"], ()))
            found.append(Part(**{**values, "skipped_rows": _numbers(values["skipped_rows"]), "revisions": later}))
        if revisions:
            raise ValueError(f"part {min(revisions)}, which there is not, has a file that was written later")
        return tuple(found)

    def _revisions(self, output: str) -> dict[int, list[Revision]]:
        """Return the files that were written after their parts, by part."""
        query = (
            f"SELECT {', '.join(_REVISION_COLUMNS)}, seal FROM revisions WHERE output = ? "  # noqa: S608  ours
            "ORDER BY part, revision"
        )
        found: dict[int, list[Revision]] = {}
        for row in self._connection.execute(query, (output,)):
            values = _typed(_REVISION_COLUMNS, _unsealed(row, f"what stands there of a later file of part {row[0]}"))
            part = values.pop("part")
            found.setdefault(part, []).append(Revision(**{**values, "rows": _numbers(values["rows"])}))
        return found

    def _begun(self, output: str) -> Begun | None:
        query = f"SELECT {', '.join(_BEGUN_COLUMNS)}, seal FROM begun WHERE output = ?"  # noqa: S608  ours
        row = self._connection.execute(query, (output,)).fetchone()
        if row is None:
            return None
        values = _typed(_BEGUN_COLUMNS, _unsealed(row, f"what stands there of part {row[0]}, which was begun,"))
        state, name = values.pop("state"), values.pop("name")
        part = Part(**{**values, "skipped_rows": _numbers(values["skipped_rows"])})
        return Begun(part=part, state=state, name=name)

    def begin(
        self,
        output: str,
        *,
        made_by: MadeBy,
        job: str,
        run: str,
        files: Sequence[FileState] = (),
        gone: Sequence[str] = (),
    ) -> None:
        """Note that a run works on an output and its files, and which earlier ones have gone.

        Parts that an earlier run committed or began stay, its open failures go. Parts that are made from now on are
        made by this deployment, which may be another one than before.
        """
        with self._transaction() as db:
            is_same = _note_deployment(db, output, made_by)
            db.execute(
                "INSERT INTO outputs (output, deployment, job, identity, status, run, started, part_digits) "
                "VALUES (?, ?, ?, ?, 'running', ?, ?, ?) ON CONFLICT (output) DO UPDATE SET "
                "deployment = excluded.deployment, job = excluded.job, status = 'running', run = excluded.run, "
                "batch_size = CASE WHEN ? THEN batch_size END, "
                "identity = excluded.identity, started = excluded.started, ended = NULL, reason = NULL",
                (output, made_by.name, job, json.dumps(dict(made_by.identity)), run, now(), PART_DIGITS, is_same),
            )
            db.execute(
                "DELETE FROM failures WHERE output = ? AND part NOT IN (SELECT number FROM parts WHERE output = ?) "
                "AND NOT EXISTS (SELECT * FROM begun WHERE begun.output = failures.output AND number = part "
                "AND row < start + rows)",
                (output, output),
            )
            db.executemany(
                "INSERT INTO inputs VALUES (?, ?, ?, ?, ?, 0) ON CONFLICT (output, path) DO UPDATE SET "
                "number = CASE WHEN done THEN excluded.number ELSE number END, "
                "size = excluded.size, mtime_ns = excluded.mtime_ns, done = 0",
                [
                    (output, os.fsencode(one.path), number, one.size, one.mtime_ns)
                    for number, one in enumerate(files, self._next_number(db, output))
                ],
            )
            self._mark_gone(db, output, gone)
            _seal_inputs(db, output)

    @staticmethod
    def _next_number(db: sqlite3.Connection, output: str) -> int:
        query = "SELECT COALESCE(MAX(number) + 1, 0) FROM inputs WHERE output = ?"
        number: int = db.execute(query, (output,)).fetchone()[0]
        return number

    def inputs(self, output: str) -> tuple[KnownFile, ...]:
        """Return the input files of an output that runs have taken up, in the order in which their rows count."""
        with undamaged():
            query = "SELECT inputs_seal FROM outputs WHERE output = ?"
            sealed = self._connection.execute(query, (output,)).fetchone()
            if sealed is not None and sealed[0] != _seal_of_inputs(self._connection, output):
                raise ValueError("its list of input files is not what was written")
            query = "SELECT path, size, mtime_ns, done FROM inputs WHERE output = ? ORDER BY number"
            rows = self._connection.execute(query, (output,)).fetchall()
            repaired = self._repairs(output)
            return tuple(
                KnownFile(
                    state=FileState(path=os.fsdecode(path), size=size, mtime_ns=time),
                    done=bool(done),
                    gone=done == _GONE,
                    repaired=tuple(repaired.get(path, ())),
                )
                for path, size, time, done in rows
            )

    def _repairs(self, output: str) -> dict[bytes, list[FileState]]:
        """Return how files were later, when their failed rows were run again, by path."""
        found: dict[bytes, list[FileState]] = {}
        query = "SELECT path, size, mtime_ns FROM repairs WHERE output = ?"
        for path, size, mtime_ns in self._connection.execute(query, (output,)):
            found.setdefault(path, []).append(FileState(path=os.fsdecode(path), size=size, mtime_ns=mtime_ns))
        return found

    def note_repairs(self, output: str, repairs: Iterable[Repair], run: str) -> None:
        """Note input files that were not what they had been when their failed rows were run again."""
        rows = [
            (output, os.fsencode(one.state.path), one.state.size, one.state.mtime_ns, one.sha256, one.before, run)
            for one in repairs
        ]
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO repairs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def note_gone(self, output: str, paths: Sequence[str]) -> None:
        """Note that input files whose rows are accounted for are no longer there."""
        with self._transaction() as db:
            self._mark_gone(db, output, paths)
            _seal_inputs(db, output)

    @staticmethod
    def _mark_gone(db: sqlite3.Connection, output: str, paths: Sequence[str]) -> None:
        rows = [(_GONE, output, os.fsencode(path)) for path in paths]
        db.executemany("UPDATE inputs SET done = ? WHERE output = ? AND path = ? AND done", rows)

    def rename(self, output: str, new: str) -> None:
        """Note that the user's old output got another name."""
        with self._transaction() as db:
            db.execute("PRAGMA defer_foreign_keys = ON")
            for table in ("outputs", *_OF_OUTPUTS):
                db.execute(f"UPDATE {table} SET output = ? WHERE output = ?", (new, output))  # noqa: S608  ours

    def remember_batch_size(self, output: str, size: int) -> None:
        """Keep the batch size that `auto` has found: a run that goes on uses the same."""
        with self._transaction() as db:
            db.execute("UPDATE outputs SET batch_size = ? WHERE output = ?", (size, output))

    def forget(self, output: str) -> None:
        """Drop an output whose folder the user has taken away."""
        with self._transaction() as db:
            db.execute("DELETE FROM outputs WHERE output = ?", (output,))

    def commit_part(
        self,
        output: str,
        part: Part,
        failures: Sequence[FailedRow],
        *,
        provenance: Mapping[str, Any] | None = None,
        statistics: Mapping[str, Any] | None = None,
    ) -> None:
        """Commit a part that lies under its final name, with its failed rows, its origin, and the job's statistics."""
        with self._transaction() as db:
            part = _with_provenance(db, part, provenance)
            insert_sealed(db, "parts", output, _PART_COLUMNS, _part_cells(part))
            db.execute("DELETE FROM begun WHERE output = ?", (output,))
            db.execute("UPDATE outputs SET revision = 0 WHERE output = ?", (output,))
            self._insert_failures(db, output, part.number, failures)
            self._set_statistics(db, output, statistics)

    def keep_begun(
        self,
        output: str,
        begun: Begun,
        failures: Sequence[FailedRow],
        *,
        provenance: Mapping[str, Any] | None = None,
    ) -> Begun:
        """Keep what is through of a part, in place of what an earlier run has kept of it, with its new failed rows.

        Return it with the digest of what it was made from.
        """
        with self._transaction() as db:
            part = _with_provenance(db, begun.part, provenance)
            insert_sealed(db, "begun", output, _BEGUN_COLUMNS, (*_part_cells(part), begun.state, begun.name))
            self._insert_failures(db, output, part.number, failures)
        return replace(begun, part=part)

    def forget_begun(self, output: str) -> None:
        """Drop what was kept of a part: its rows run again. Its failed rows go when the job begins."""
        with self._transaction() as db:
            db.execute("DELETE FROM begun WHERE output = ?", (output,))

    def lose_begun(self, output: str) -> None:
        """Drop a part that may have been carried away before it was committed: its rows run again, under a new name."""
        with self._transaction() as db:
            db.execute("DELETE FROM begun WHERE output = ?", (output,))
            db.execute("UPDATE outputs SET revision = revision + 1 WHERE output = ?", (output,))

    def made_by(self, digest: str | None) -> MadeBy | None:
        """Return a deployment that made parts; None where none was noted."""
        if digest is None:
            return None
        query = f"SELECT {', '.join(_DEPLOYMENT_COLUMNS)} FROM deployments WHERE digest = ?"  # noqa: S608  ours
        with undamaged():
            row = self._connection.execute(query, (digest,)).fetchone()
            if row is None:
                raise ValueError("the deployment that made a part is not noted")
            values = _typed(_DEPLOYMENT_COLUMNS, row)
            known = {name: json.loads(values[name]) for name in ("identity", "layout")}
            found = MadeBy(name=values["name"], profile=values["profile"], **known)
            if found.digest != digest:
                raise ValueError("the deployment that made a part is not what was written")
            return found

    def makers(self, record: OutputRecord) -> dict[str, MadeBy]:
        """Return the deployments that made the parts of an output, by digest."""
        return {digest: one for digest in record.makers if (one := self.made_by(digest)) is not None}

    def keep_statistics(self, output: str, statistics: Mapping[str, Any]) -> None:
        """Keep what a run has measured so far."""
        with self._transaction() as db:
            self._set_statistics(db, output, statistics)

    @staticmethod
    def _set_statistics(db: sqlite3.Connection, output: str, statistics: Mapping[str, Any] | None) -> None:
        if statistics is not None:
            query = "UPDATE outputs SET statistics = ? WHERE output = ?"
            db.execute(query, (json.dumps(statistics, separators=(",", ":")), output))

    def provenance(self, digests: Iterable[str]) -> dict[str, Any]:
        """Return what parts were made from, by digest; also what their first rows were, where that is another."""
        found: dict[str, Any] = {}
        with undamaged():
            query = "SELECT entry FROM provenance WHERE digest = ?"
            wanted = list(digests)
            for digest in wanted:
                row = self._connection.execute(query, (digest,)).fetchone()
                if row is None or hashlib.sha256(row[0].encode()).hexdigest() != digest:
                    raise ValueError("what a part was made from is not what was written")
                found[digest] = json.loads(row[0])
                before = found[digest].get(BEGUN_WITH)
                wanted += [before] if before is not None and before not in wanted else []
            return found

    def note_failures(self, output: str, part: int, failures: Sequence[FailedRow]) -> None:
        """Keep the failed rows of a part that was given up, so that the user sees them."""
        with self._transaction() as db:
            self._insert_failures(db, output, part, failures)

    def _insert_failures(self, db: sqlite3.Connection, output: str, part: int, failures: Sequence[FailedRow]) -> None:
        rows = [(output, failure.row, part, json.dumps(_entry(failure))) for failure in failures]
        db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", rows)

    def end(self, output: str, status: str, reason: str | None, ended: str | None = None) -> None:
        """Note how the run on an output ended; when it is done, so are its input files."""
        with self._transaction() as db:
            query = "UPDATE outputs SET status = ?, ended = ?, reason = ? WHERE output = ?"
            db.execute(query, (status, ended or now(), reason, output))
            if status == "done":
                db.execute("UPDATE inputs SET done = 1 WHERE output = ? AND done = 0", (output,))
                db.execute(
                    "UPDATE outputs SET first_row = (SELECT COALESCE(SUM(rows), 0) FROM parts WHERE output = ?) "
                    "WHERE output = ?",
                    (output, output),
                )
                _seal_inputs(db, output)

    def failures(self, output: str) -> Iterator[str]:
        """Yield the failed rows of an output as JSON, in the order of their rows."""
        with _translated():
            query = "SELECT entry FROM failures WHERE output = ? ORDER BY row"
            yield from (entry for (entry,) in self._connection.execute(query, (output,)))

    def failed_rows(self, output: str) -> dict[int, dict[int, FailedBefore]]:
        """Return the failed rows of committed parts: by part, and by row how often it was tried."""
        query = (
            "SELECT part, row, entry, part IN (SELECT number FROM parts WHERE output = ?) FROM failures "
            "WHERE output = ? ORDER BY row"
        )
        found: dict[int, dict[int, FailedBefore]] = {}
        with undamaged():
            for part, row, entry, is_committed in self._connection.execute(query, (output, output)):
                before = _failed_before(row, entry)
                if is_committed:
                    found.setdefault(part, {})[row] = before
        return found

    def failed_of_begun(self, output: str, begun: Begun) -> dict[int, FailedBefore]:
        """Return the failed rows of a part that was begun, and how often each was tried."""
        query = "SELECT row, entry FROM failures WHERE output = ? AND part = ? AND row < ? ORDER BY row"
        with undamaged():
            found = self._connection.execute(query, (output, begun.part.number, begun.end)).fetchall()
            return {row: _failed_before(row, entry) for row, entry in found}

    def begin_merge(self, output: str, merge: Merge, made_by: MadeBy) -> None:
        """Note that a merged file takes the place of a part from now on, or lies beside it under a name of its own."""
        with self._transaction() as db:
            insert_sealed(db, "merges", output, MERGE_COLUMNS, _merge_cells(merge))
            if merge.revision:
                _insert_deployment(db, made_by)
                (part,) = (one for one in self._parts(output) if one.number == merge.part)
                cells = _part_cells(replace(part, revision=merge.revision))
                insert_sealed(db, "parts", output, _PART_COLUMNS, cells)

    def merges(self, output: str) -> tuple[Merge, ...]:
        """Return the merges that were begun and not ended."""
        with undamaged():
            query = f"SELECT {', '.join(MERGE_COLUMNS)}, seal FROM merges WHERE output = ? ORDER BY part"  # noqa: S608  ours
            found = []
            for row in self._connection.execute(query, (output,)):
                values = _typed(MERGE_COLUMNS, _unsealed(row, f"what stands there of the merge of part {row[0]}"))
                found.append(Merge(**{**values, "rows": _numbers(values["rows"])}))
            return tuple(found)

    def end_merge(self, output: str, part: Part, merge: Merge) -> None:
        """Note that a merged file has its place: its rows are committed, and no longer failed."""
        file = {name: getattr(merge, name) for name in ("file", "bytes", "sha256", "mtime_ns")}
        with self._transaction() as db:
            merged = replace(part, committed=part.committed + len(merge.rows), failed=part.failed - len(merge.rows))
            merged = replace(merged, revision=merge.revision) if merge.revision else replace(merged, **file)
            insert_sealed(db, "parts", output, _PART_COLUMNS, _part_cells(merged))
            if merge.revision:
                cells = {**file, "part": merge.part, "revision": merge.revision, "deployment": merge.deployment}
                cells["rows"] = json.dumps(merge.rows)
                ordered = tuple(cells[name] for name in _REVISION_COLUMNS)
                insert_sealed(db, "revisions", output, _REVISION_COLUMNS, ordered)
            rows = [(output, row) for row in merge.rows]
            db.executemany("DELETE FROM failures WHERE output = ? AND row = ?", rows)
            db.execute("DELETE FROM merges WHERE output = ? AND part = ?", (output, merge.part))

    def forget_merge(self, output: str, merge: Merge) -> None:
        """Drop a merge whose file is gone while the part that it was to replace is there: its rows stay failed."""
        with self._transaction() as db:
            db.execute("DELETE FROM merges WHERE output = ? AND part = ?", (output, merge.part))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _translated(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


def _with_provenance(db: sqlite3.Connection, part: Part, provenance: Mapping[str, Any] | None) -> Part:
    """Return a part with the digest of what it was made from, which is kept."""
    if provenance is None:
        return part
    digest, entry = provenance_entry(provenance)
    db.execute("INSERT OR IGNORE INTO provenance VALUES (?, ?)", (digest, entry))
    return replace(part, provenance=digest)


def provenance_entry(provenance: Mapping[str, Any]) -> tuple[str, str]:
    """Return the digest of what a part was made from, and how that is written."""
    entry = json.dumps(provenance, sort_keys=True)
    return hashlib.sha256(entry.encode()).hexdigest(), entry


def _part_cells(part: Part) -> tuple[Any, ...]:
    """Return a part as the cells of its row, in the order of the columns."""
    plain = {name: getattr(part, name) for name in _PART_COLUMNS}
    return tuple({**plain, "skipped_rows": json.dumps(part.skipped_rows)}.values())


def _merge_cells(merge: Merge) -> tuple[Any, ...]:
    """Return a merge as the cells of its row, in the order of the columns."""
    plain = {name: getattr(merge, name) for name in MERGE_COLUMNS}
    return tuple({**plain, "rows": json.dumps(merge.rows)}.values())


def insert_sealed(
    db: sqlite3.Connection, table: str, output: str, columns: Mapping[str, Any], cells: tuple[Any, ...]
) -> None:
    """Write a row with its seal, in place of one of the same key."""
    marks = ", ".join("?" * (len(columns) + 2))
    names = ", ".join(columns)
    query = f"INSERT OR REPLACE INTO {table} (output, {names}, seal) VALUES ({marks})"  # noqa: S608  ours
    db.execute(query, (output, *cells, _seal(*cells)))


def _note_deployment(db: sqlite3.Connection, output: str, made_by: MadeBy) -> bool:
    """Note what makes parts from now on, and what made those that were there before that was noted.

    Return whether results depend on the same as before.
    """
    _insert_deployment(db, made_by)
    row = db.execute("SELECT identity, deployment FROM outputs WHERE output = ?", (output,)).fetchone()
    identity = dict(made_by.identity) if row is None else json.loads(row[0])
    is_same: bool = identity == dict(made_by.identity)
    before = made_by if is_same else MadeBy(name=row[1], profile=None, identity=identity, layout=None)
    query = f"SELECT {', '.join(_PART_COLUMNS)} FROM parts WHERE output = ? AND deployment IS NULL"  # noqa: S608  ours
    place = list(_PART_COLUMNS).index("deployment")
    for cells in db.execute(query, (output,)).fetchall():
        _insert_deployment(db, before)
        insert_sealed(db, "parts", output, _PART_COLUMNS, (*cells[:place], before.digest, *cells[place + 1 :]))
    return is_same


def _insert_deployment(db: sqlite3.Connection, one: MadeBy) -> None:
    db.execute(
        "INSERT OR IGNORE INTO deployments (digest, name, profile, identity, layout) VALUES (?, ?, ?, ?, ?)",
        (one.digest, one.name, one.profile, json.dumps(dict(one.identity)), json.dumps(one.layout)),
    )


def _seal_of_inputs(db: sqlite3.Connection, output: str) -> str:
    """Return the seal over the first row and the input files of an output."""
    (first_row,) = db.execute("SELECT first_row FROM outputs WHERE output = ?", (output,)).fetchone()
    query = "SELECT number, path, size, mtime_ns, done FROM inputs WHERE output = ? ORDER BY number, path"
    return _seal(
        first_row,
        [(number, os.fsencode(path).hex(), *others) for number, path, *others in db.execute(query, (output,))],
    )


def _seal_inputs(db: sqlite3.Connection, output: str) -> None:
    db.execute("UPDATE outputs SET inputs_seal = ? WHERE output = ?", (_seal_of_inputs(db, output), output))


_LETTER: Mapping[str, Any] = {
    "key": dict, "source": str, "row": int, "stage": str, "code": str, "message": str, "attempts": int,
}  # fmt: skip
_LETTER_SINCE_VERSION_4: Mapping[str, Any] = {
    **_LETTER, "path": str, "row_in_file": int | None, "sha256": str | None, "run": str, "plan": str,
}  # fmt: skip


def _failed_before(row: Any, text: str) -> FailedBefore:
    """Return how often a failed row was tried, and where it is. Raises ValueError if that is not what was written."""
    entry = json.loads(text)
    kinds = _LETTER_SINCE_VERSION_4
    if (
        not isinstance(entry, dict)
        or entry.keys() not in (_LETTER.keys(), kinds.keys())
        or any(not isinstance(value, kinds[name]) for name, value in entry.items())
    ):
        raise ValueError(f"what stands there of failed row {row!r} is not what was written")
    if entry["row"] != row:
        raise ValueError(f"failed row {row!r} is called {entry['row']} too")
    return FailedBefore(
        attempts=entry["attempts"],
        path=entry.get("path", ""),
        file_row=entry.get("row_in_file"),
        sha256=entry.get("sha256"),
    )


def _entry(failure: FailedRow) -> dict[str, Any]:
    return {
        "key": dict(failure.key),
        "source": failure.source,
        "row": failure.row,
        "stage": failure.stage,
        "code": failure.code,
        "message": failure.message,
        "attempts": failure.attempts,
        "path": failure.path,
        "row_in_file": failure.file_row,
        "sha256": failure.sha256,
        "run": failure.run,
        "plan": failure.plan,
    }


def now() -> str:
    """Return the time as it stands in the ledger and the report: ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY = 0xFF  # the part of an extended result code that names the kind of error


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
        what = damaged(error) if code in _DAMAGE else f"the ledger {FILE} cannot be used: {error}"
        raise OrtdeployError(what) from error


def damaged(what: object) -> str:
    """Say that the ledger is damaged, and what to do: nothing of it throws away what is good."""
    return (
        f"the ledger {FILE} is damaged ({what}). Bring it back from a copy; or move it away together with the output "
        "folders, whose results stay as they are, and their jobs start over"
    )


@contextmanager
def undamaged() -> Iterator[None]:
    """Read what the ledger holds. Raises OrtdeployError if that is not what was written: SQLite does not notice."""
    try:
        with _translated():
            yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise OrtdeployError(damaged(error)) from error


@contextmanager
def open_ledger(state_dir: Path) -> Iterator[Ledger]:
    """Open the ledger of a state directory for writing; make or migrate it where needed. Raises OrtdeployError."""
    with _translated():
        make_folder(state_dir)
        with closing(sqlite3.connect(state_dir / FILE, timeout=PATIENCE, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA foreign_keys = ON")
            if _version(connection) != LEDGER_VERSION:
                _bring_up_to_date(connection)
            yield Ledger(connection, state_dir)


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make the tables, or migrate those of version 2: all of it or nothing, for a kill may come at any moment."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)  # another run may have been quicker
        migrations = {
            0: _SCHEMA + _TO_VERSION_4,
            2: _TO_VERSION_3 + _TO_VERSION_4,
            3: _TO_VERSION_4,
            LEDGER_VERSION: "",
        }
        for statement in migrations[version].split(";"):
            connection.execute(statement)
        with undamaged():
            if version == 3:  # noqa: PLR2004  the one whose seals are over fewer cells
                _unseal_version_3(connection)
            _seal_all(connection)
        connection.execute(f"PRAGMA user_version = {LEDGER_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _unseal_version_3(db: sqlite3.Connection) -> None:
    """Take off the seals that fit what version 3 has written; one that does not fit stays, and never fits again."""
    keys = {"parts": ("output", "number"), "begun": ("output",), "merges": ("output", "part")}
    columns = {"parts": _PART_COLUMNS, "begun": _BEGUN_COLUMNS, "merges": MERGE_COLUMNS}
    for table, key in keys.items():
        old = [name for name in columns[table] if name not in _NEW_IN_VERSION_4]
        where = " AND ".join(f"{name} = ?" for name in key)
        rows = db.execute(f"SELECT {', '.join((*key, *old))}, seal FROM {table}").fetchall()  # noqa: S608  ours
        for row in rows:
            named, cells, seal = row[: len(key)], row[len(key) : -1], row[-1]
            new = None if seal is not None and _seal(*cells) == seal else seal or "none"
            db.execute(f"UPDATE {table} SET seal = ? WHERE {where}", (new, *named))  # noqa: S608  ours


def _seal_all(db: sqlite3.Connection) -> None:
    """Seal the rows that older versions have left."""
    for table, columns in (("parts", _PART_COLUMNS), ("begun", _BEGUN_COLUMNS), ("merges", MERGE_COLUMNS)):
        query = f"SELECT output, {', '.join(columns)} FROM {table} WHERE seal IS NULL"  # noqa: S608  ours
        for output, *cells in db.execute(query).fetchall():
            insert_sealed(db, table, output, columns, tuple(cells))
    for (output,) in db.execute("SELECT output FROM outputs WHERE inputs_seal IS NULL").fetchall():
        _seal_inputs(db, output)


def _version(connection: sqlite3.Connection) -> int:
    """Return the version of a ledger; 0: it has not been made yet. Raises OrtdeployError for one that is not known."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in {0, 2, 3, LEDGER_VERSION}:
        raise OrtdeployError(
            f"the ledger {FILE} has format version {version}; this ortdeploy writes {LEDGER_VERSION}. Use "
            "the ortdeploy that wrote it, or a newer one"
        )
    return version


@contextmanager
def read_ledger(state_dir: Path) -> Iterator[Ledger | None]:
    """Open a ledger to read it, without making or changing one, also while a run is live; None if there is none."""
    path = state_dir / FILE
    if not path.exists():
        yield None
        return
    # mode=rw and not ro: after a kill, SQLite must be able to roll the journal back before anybody can read.
    with (
        _translated(),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)) as connection,
    ):
        match _version(connection):
            case 0:
                yield None
            case version if version == LEDGER_VERSION:
                yield Ledger(connection, state_dir)
            case _:
                with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                    connection.backup(copy)
                    _bring_up_to_date(copy)
                    yield Ledger(copy, state_dir)


def read_outputs(state_dir: Path) -> tuple[OutputRecord, ...]:
    """Return what a state directory's ledger knows; see `read_ledger`."""
    with read_ledger(state_dir) as ledger:
        return ledger.outputs() if ledger else ()


def named_ledger(folder: Path) -> str | None:
    """Return the ledger that an output folder names, in one line of text; None where it names none."""
    try:
        with (folder / MARKER).open("rb") as file:
            known = json.loads(file.read(_MOST_OF_A_MARKER))
    except (OSError, ValueError):
        return None
    name = known.get("ledger") if isinstance(known, dict) else None
    return name if isinstance(name, str) and name.isprintable() and name else None


def make_folder(folder: Path) -> None:
    """Make a folder of the state directory, durably. Raises OrtdeployError."""
    try:
        make_durable_folder(folder)
    except OSError as error:
        raise OrtdeployError(f"the state directory {folder} cannot be made: {error.strerror}") from error


def is_as_written(
    path: Path, record: Part | Merge | Revision, digest: Callable[[Path], str] | None = file_digest
) -> bool:
    """Return whether a file is what the ledger notes of it. Raises OSError.

    A file of the noted size and time is taken for it; else `digest` decides, for a copy has another time. None: reads
    the file in any case.
    """
    stat = path.stat()
    if stat.st_size != record.bytes:
        return False
    if record.sha256 is None or (digest is not None and stat.st_mtime_ns == record.mtime_ns):
        return True
    return (digest or file_digest)(path) == record.sha256


def find_damage(
    folder: Path,
    parts: Iterable[Part],
    merges: Iterable[Merge] = (),
    digest: Callable[[Path], str] = file_digest,
    *,
    removable: bool = False,
) -> str | None:
    """Return which committed file is not there as it was written, and how; None if all are.

    `merges` are those that a retry has begun: a part may be the old one or the new one. Files that are `removable` may
    be gone.
    """
    merged = {merge.part: merge for merge in merges if not merge.revision}
    for part in parts:
        for file in part.files:
            records: list[Part | Merge | Revision] = [file]
            records += [merged[part.number]] if file is part and part.number in merged else []
            how = difference(folder / str(file.file), records, digest)
            if how is not None and not (removable and how == GONE_FILE):
                return f"{file.file} was committed and {how}"
    return None


GONE_FILE = "is gone"


def difference(
    path: Path, records: Sequence[Part | Merge | Revision], digest: Callable[[Path], str] | None
) -> str | None:
    """Say how a file differs from all that the ledger notes of it; None if it is one of them.

    `digest` as in `is_as_written`.
    """
    try:
        if not path.is_file():
            return GONE_FILE
        if any(is_as_written(path, record, digest) for record in records):
            return None
        size = path.stat().st_size
    except FileNotFoundError:  # carried away at this moment
        return GONE_FILE
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if size == records[0].bytes:
        return "holds other bytes than were written"
    return f"has {size} bytes instead of {records[0].bytes}"
