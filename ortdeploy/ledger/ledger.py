"""The run's memory in SQLite: outputs, committed parts, failed rows. The ledger is the truth; the report is derived.

Commit protocol, as measured against power cuts (a part is in exactly one of these states at any moment):

1. the part is written under a temporary name and fsynced;
2. it is renamed to its final name, and its folder is fsynced;
3. the ledger commits the part and its failed rows in one transaction, with synchronous=FULL.

Recovery: a temporary file is deleted; a final file that the ledger does not know is written again, for parts are
numbered as they are committed. After a kill that gives the same bytes, for what a part holds is deterministic.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState, KnownFile
from ortdeploy.results.rows import FailedRow

LEDGER_VERSION = 2
FILE = "state.db"
PATIENCE = 60.0
"""Seconds in which another run that writes into the same ledger is done with its transaction."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outputs (
    output TEXT PRIMARY KEY, deployment TEXT NOT NULL, job TEXT NOT NULL, identity TEXT NOT NULL,
    status TEXT NOT NULL, run TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, reason TEXT,
    first_row INTEGER NOT NULL DEFAULT 0, batch_size INTEGER, statistics TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL DEFAULT '[]', provenance TEXT,
    PRIMARY KEY (output, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS provenance (digest TEXT PRIMARY KEY, entry TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS inputs (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, number INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (output, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS merges (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, temporary TEXT NOT NULL,
    file TEXT NOT NULL, bytes INTEGER NOT NULL, rows TEXT NOT NULL, PRIMARY KEY (output, part)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failures (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, row INTEGER NOT NULL, part INTEGER NOT NULL,
    entry TEXT NOT NULL, PRIMARY KEY (output, row)
) WITHOUT ROWID;
"""


def output_key(folder: Path, state_dir: Path) -> str:
    """Return an output folder's way from the state directory, with forward slashes."""
    return os.path.relpath(folder.absolute(), state_dir.absolute()).replace(os.sep, "/")


def output_file(state_dir: Path, folder: str, output: str, suffix: str) -> Path:
    """Return a file of one output's own in a folder of the state directory, whatever characters its name has."""
    return state_dir / folder / f"{hashlib.sha256(output.encode()).hexdigest()[:16]}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A committed range of a job's rows; `file` is None when none of them gave a result.

    `skipped_rows` are the numbers of those that are neither in the file nor failed; `provenance` is the digest of what
    the part was made from.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A file that takes a part's place, with the rows that it holds and the part did not."""

    part: int
    temporary: str
    file: str
    bytes: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """What the ledger knows of one output folder. `status` is running, done, failed or interrupted.

    `first_row`: so many rows came from input files of runs that are finished. `batch_size` is what `auto` has found.
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
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Rows of the input that committed parts cover."""
        return sum(part.rows for part in self.parts)


_OUTPUT_COLUMNS = (
    "output", "deployment", "job", "identity", "status", "run", "started", "ended", "reason", "first_row",
    "batch_size", "statistics",
)  # fmt: skip
_PART_COLUMNS = (
    "number", "start", "rows", "committed", "failed", "skipped", "file", "bytes", "skipped_rows", "provenance",
)  # fmt: skip


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
        values = dict(zip(_OUTPUT_COLUMNS, row, strict=True))
        return OutputRecord(
            **{
                **values,
                "identity": dict(json.loads(values["identity"])),
                "statistics": dict(json.loads(values["statistics"])),
                "parts": self._parts(values["output"]),
            }
        )

    def _parts(self, output: str) -> tuple[Part, ...]:
        query = f"SELECT {', '.join(_PART_COLUMNS)} FROM parts WHERE output = ? ORDER BY number"  # noqa: S608  ours
        rows = (dict(zip(_PART_COLUMNS, row, strict=True)) for row in self._connection.execute(query, (output,)))
        return tuple(Part(**{**row, "skipped_rows": tuple(json.loads(row["skipped_rows"]))}) for row in rows)

    def begin(
        self,
        output: str,
        *,
        deployment: str,
        job: str,
        identity: Mapping[str, str],
        run: str,
        files: Sequence[FileState] = (),
    ) -> None:
        """Note that a run works on an output and its files.

        Parts that an earlier run committed stay, its open failures go.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT INTO outputs (output, deployment, job, identity, status, run, started) "
                "VALUES (?, ?, ?, ?, 'running', ?, ?) ON CONFLICT (output) DO UPDATE SET "
                "deployment = excluded.deployment, job = excluded.job, status = 'running', run = excluded.run, "
                "started = excluded.started, ended = NULL, reason = NULL",
                (output, deployment, job, json.dumps(identity), run, now()),
            )
            db.execute(
                "DELETE FROM failures WHERE output = ? AND part NOT IN (SELECT number FROM parts WHERE output = ?)",
                (output, output),
            )
            db.executemany(
                "INSERT INTO inputs VALUES (?, ?, ?, ?, ?, 0) ON CONFLICT (output, path) DO UPDATE SET "
                "size = excluded.size, mtime_ns = excluded.mtime_ns, done = 0",
                [
                    (output, os.fsencode(one.path), number, one.size, one.mtime_ns)
                    for number, one in enumerate(files, self._next_number(db, output))
                ],
            )

    @staticmethod
    def _next_number(db: sqlite3.Connection, output: str) -> int:
        query = "SELECT COALESCE(MAX(number) + 1, 0) FROM inputs WHERE output = ?"
        number: int = db.execute(query, (output,)).fetchone()[0]
        return number

    def inputs(self, output: str) -> tuple[KnownFile, ...]:
        """Return the input files of an output that runs have taken up, in the order in which their rows count."""
        with undamaged():
            query = "SELECT path, size, mtime_ns, done FROM inputs WHERE output = ? ORDER BY number"
            rows = self._connection.execute(query, (output,)).fetchall()
            return tuple(
                KnownFile(state=FileState(path=os.fsdecode(path), size=size, mtime_ns=time), done=bool(done))
                for path, size, time, done in rows
            )

    def rename(self, output: str, new: str) -> None:
        """Note that the user's old output got another name."""
        with self._transaction() as db:
            db.execute("PRAGMA defer_foreign_keys = ON")
            for table in ("outputs", "parts", "failures", "inputs", "merges"):
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
            if provenance is not None:
                entry = json.dumps(provenance, sort_keys=True)
                part = replace(part, provenance=hashlib.sha256(entry.encode()).hexdigest())
                db.execute("INSERT OR IGNORE INTO provenance VALUES (?, ?)", (part.provenance, entry))
            values = {**asdict(part), "skipped_rows": json.dumps(part.skipped_rows)}
            marks = ", ".join("?" * (len(_PART_COLUMNS) + 1))
            query = f"INSERT INTO parts (output, {', '.join(_PART_COLUMNS)}) VALUES ({marks})"  # noqa: S608  ours
            db.execute(query, (output, *(values[name] for name in _PART_COLUMNS)))
            self._insert_failures(db, output, part.number, failures)
            self._set_statistics(db, output, statistics)

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
        """Return what parts were made from, by digest."""
        with undamaged():
            query = "SELECT entry FROM provenance WHERE digest = ?"
            found = {digest: self._connection.execute(query, (digest,)).fetchone() for digest in digests}
            return {digest: json.loads(row[0]) for digest, row in found.items() if row}

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
                db.execute("UPDATE inputs SET done = 1 WHERE output = ?", (output,))
                db.execute(
                    "UPDATE outputs SET first_row = (SELECT COALESCE(SUM(rows), 0) FROM parts WHERE output = ?) "
                    "WHERE output = ?",
                    (output, output),
                )

    def failures(self, output: str) -> Iterator[str]:
        """Yield the failed rows of an output as JSON, in the order of their rows."""
        with _translated():
            query = "SELECT entry FROM failures WHERE output = ? ORDER BY row"
            yield from (entry for (entry,) in self._connection.execute(query, (output,)))

    def failed_rows(self, output: str) -> dict[int, dict[int, int]]:
        """Return the failed rows of committed parts: by part, and by row how often it was tried."""
        query = (
            "SELECT part, row, entry FROM failures WHERE output = ? "
            "AND part IN (SELECT number FROM parts WHERE output = ?) ORDER BY row"
        )
        found: dict[int, dict[int, int]] = {}
        with undamaged():
            for part, row, entry in self._connection.execute(query, (output, output)):
                found.setdefault(part, {})[row] = json.loads(entry)["attempts"]
        return found

    def begin_merge(self, output: str, merge: Merge) -> None:
        """Note that a merged file takes the place of a part from now on."""
        with self._transaction() as db:
            values = (output, merge.part, merge.temporary, merge.file, merge.bytes, json.dumps(merge.rows))
            db.execute("INSERT OR REPLACE INTO merges VALUES (?, ?, ?, ?, ?, ?)", values)

    def merges(self, output: str) -> tuple[Merge, ...]:
        """Return the merges that were begun and not ended."""
        with undamaged():
            query = "SELECT part, temporary, file, bytes, rows FROM merges WHERE output = ?"
            found = self._connection.execute(query, (output,)).fetchall()
            return tuple(
                Merge(part=part, temporary=temporary, file=file, bytes=size, rows=tuple(json.loads(rows)))
                for part, temporary, file, size, rows in found
            )

    def end_merge(self, output: str, merge: Merge) -> None:
        """Note that a merged file has its place: its rows are committed, and no longer failed."""
        with self._transaction() as db:
            db.execute(
                "UPDATE parts SET committed = committed + ?, failed = failed - ?, file = ?, bytes = ? "
                "WHERE output = ? AND number = ?",
                (len(merge.rows), len(merge.rows), merge.file, merge.bytes, output, merge.part),
            )
            rows = [(output, row) for row in merge.rows]
            db.executemany("DELETE FROM failures WHERE output = ? AND row = ?", rows)
            db.execute("DELETE FROM merges WHERE output = ? AND part = ?", (output, merge.part))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _translated(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


def _entry(failure: FailedRow) -> dict[str, Any]:
    return {
        "key": dict(failure.key),
        "source": failure.source,
        "row": failure.row,
        "stage": failure.stage,
        "code": failure.code,
        "message": failure.message,
        "attempts": failure.attempts,
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
        what = _damaged(error) if code in _DAMAGE else f"the ledger {FILE} cannot be used: {error}"
        raise OrtdeployError(what) from error


def _damaged(error: Exception) -> str:
    return (
        f"the ledger {FILE} is damaged ({error}). Bring it back from a copy; or move it away with the outputs, and "
        "their jobs start over"
    )


@contextmanager
def undamaged() -> Iterator[None]:
    """Read what the ledger holds. Raises OrtdeployError where that is not what was written: SQLite does not notice."""
    try:
        with _translated():
            yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise OrtdeployError(_damaged(error)) from error


@contextmanager
def open_ledger(state_dir: Path) -> Iterator[Ledger]:
    """Open the ledger of a state directory for writing, and make it if it is not there. Raises OrtdeployError."""
    with _translated():
        make_folder(state_dir)
        connection = sqlite3.connect(state_dir / FILE, timeout=PATIENCE, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            if _version(connection) == 0:
                script = f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {LEDGER_VERSION}; COMMIT;"
                connection.executescript(script)  # all of it or nothing: a kill leaves no ledger without tables
            yield Ledger(connection, state_dir)
        finally:
            connection.close()


def _version(connection: sqlite3.Connection) -> int:
    """Return the version of a ledger; 0: it has not been made yet. Raises OrtdeployError for one of another version."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in {0, LEDGER_VERSION}:
        raise OrtdeployError(f"the ledger {FILE} has format version {version}; this ortdeploy writes {LEDGER_VERSION}")
    return version


@contextmanager
def read_ledger(state_dir: Path) -> Iterator[Ledger | None]:
    """Open a ledger to read it, without making or changing one, also while a run is live; None where there is none."""
    path = state_dir / FILE
    if not path.exists():
        yield None
        return
    with _translated():
        # mode=rw and not ro: after a kill, SQLite must be able to roll the journal back before anybody can read.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
        try:
            yield Ledger(connection, state_dir) if _version(connection) else None
        finally:
            connection.close()


def read_outputs(state_dir: Path) -> tuple[OutputRecord, ...]:
    """Return what a state directory's ledger knows; see `read_ledger`."""
    with read_ledger(state_dir) as ledger:
        return ledger.outputs() if ledger else ()


def make_folder(state_dir: Path) -> None:
    """Make the state directory. Raises OrtdeployError."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OrtdeployError(f"the state directory {state_dir} cannot be made: {error.strerror}") from error


def find_damage(folder: Path, parts: Iterable[Part], merged: Mapping[str, int] = MappingProxyType({})) -> str | None:
    """Return which committed part is not there as it was written, and how; None where all are.

    `merged` are the sizes of those that a retry may have replaced already.
    """
    for part in parts:
        if part.file is None:
            continue
        path = folder / part.file
        size = path.stat().st_size if path.is_file() else None
        if size not in {part.bytes, merged.get(part.file, part.bytes)}:
            how = "is gone" if size is None else f"has {size} bytes instead of {part.bytes}"
            return f"{part.file} was committed and {how}"
    return None
