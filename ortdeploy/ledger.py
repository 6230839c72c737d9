"""The run's memory in SQLite: outputs, committed parts, failed rows. The ledger is the truth; the report is derived.

Commit protocol, as measured against power cuts (a part is in exactly one of these states at any moment):

1. the part is written under a temporary name and fsynced;
2. it is renamed to its final name, and its folder is fsynced;
3. the ledger commits the part and its failed rows in one transaction, with synchronous=FULL.

Recovery: a temporary file is deleted; a final file that the ledger does not know is written again over itself, which
gives the same bytes, for parts are deterministic.
"""

import json
import os
import platform
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ortdeploy.diagnostics import LockedError, OrtdeployError
from ortdeploy.sources.protocol import FailedRow

LEDGER_VERSION = 1
FILE = "state.db"
LOCK = "lock.db"
LOCK_PATIENCE = 0.2
"""Seconds in which a `status` that looks at the lock at the same moment is gone again."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outputs (
    output TEXT PRIMARY KEY, deployment TEXT NOT NULL, job TEXT NOT NULL, identity TEXT NOT NULL,
    status TEXT NOT NULL, run TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, reason TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, PRIMARY KEY (output, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failures (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, row INTEGER NOT NULL, part INTEGER NOT NULL,
    entry TEXT NOT NULL, PRIMARY KEY (output, row)
) WITHOUT ROWID;
"""


def output_key(folder: Path, state_dir: Path) -> str:
    """Return an output folder's way from the state directory, with forward slashes."""
    return os.path.relpath(folder.absolute(), state_dir.absolute()).replace(os.sep, "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A committed range of a job's rows; `file` is None when none of them gave a result."""

    number: int
    start: int
    rows: int
    committed: int
    failed: int
    skipped: int
    file: str | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """What the ledger knows of one output folder. `status` is running, done, failed or interrupted."""

    output: str
    deployment: str
    job: str
    identity: Mapping[str, str]
    status: str
    run: str
    started: str
    ended: str | None
    reason: str | None
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Rows of the input that committed parts cover."""
        return sum(part.rows for part in self.parts)


class Ledger:
    """An open ledger. Every method that writes commits before it returns. Raises OrtdeployError."""

    def __init__(self, connection: sqlite3.Connection, state_dir: Path) -> None:
        """Take a connection whose tables are there."""
        self._connection = connection
        self._state_dir = state_dir

    def key(self, folder: Path) -> str:
        """Return an output folder's name in the ledger: its way from the state directory, so that both can move."""
        return output_key(folder, self._state_dir)

    def output(self, output: str) -> OutputRecord | None:
        """Return what is known of an output folder."""
        with _translated():
            row = self._connection.execute("SELECT * FROM outputs WHERE output = ?", (output,)).fetchone()
            return self._record(row) if row else None

    def outputs(self) -> tuple[OutputRecord, ...]:
        """Return every output that the ledger knows."""
        with _translated():
            rows = self._connection.execute("SELECT * FROM outputs ORDER BY output").fetchall()
            return tuple(self._record(row) for row in rows)

    def _record(self, row: Sequence[Any]) -> OutputRecord:
        output, deployment, job, identity, status, run, started, ended, reason = row
        columns = "number, start, rows, committed, failed, skipped, file, bytes"
        query = f"SELECT {columns} FROM parts WHERE output = ? ORDER BY number"  # noqa: S608  columns are ours
        names = columns.split(", ")
        parts = [Part(**dict(zip(names, values, strict=True))) for values in self._connection.execute(query, (output,))]
        return OutputRecord(
            output=output,
            deployment=deployment,
            job=job,
            identity=json.loads(identity),
            status=status,
            run=run,
            started=started,
            ended=ended,
            reason=reason,
            parts=tuple(parts),
        )

    def begin(self, output: str, *, deployment: str, job: str, identity: Mapping[str, str], run: str) -> None:
        """Note that a run works on an output; parts that an earlier run committed stay, its open failures go."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO outputs VALUES (?, ?, ?, ?, 'running', ?, ?, NULL, NULL) "
                "ON CONFLICT (output) DO UPDATE SET "
                "deployment = excluded.deployment, job = excluded.job, status = 'running', run = excluded.run, "
                "started = excluded.started, ended = NULL, reason = NULL",
                (output, deployment, job, json.dumps(identity), run, now()),
            )
            db.execute(
                "DELETE FROM failures WHERE output = ? AND part NOT IN (SELECT number FROM parts WHERE output = ?)",
                (output, output),
            )

    def forget(self, output: str) -> None:
        """Drop an output whose folder the user has taken away."""
        with self._transaction() as db:
            db.execute("DELETE FROM outputs WHERE output = ?", (output,))

    def commit_part(self, output: str, part: Part, failures: Sequence[FailedRow]) -> None:
        """Commit a part that lies under its final name, together with its failed rows."""
        with self._transaction() as db:
            values = (
                part.number,
                part.start,
                part.rows,
                part.committed,
                part.failed,
                part.skipped,
                part.file,
                part.bytes,
            )
            db.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (output, *values))
            self._insert_failures(db, output, part.number, failures)

    def note_failures(self, output: str, part: int, failures: Sequence[FailedRow]) -> None:
        """Keep the failed rows of a part that was given up, so that the user sees them."""
        with self._transaction() as db:
            self._insert_failures(db, output, part, failures)

    def _insert_failures(self, db: sqlite3.Connection, output: str, part: int, failures: Sequence[FailedRow]) -> None:
        rows = [(output, failure.row, part, json.dumps(_entry(failure))) for failure in failures]
        db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", rows)

    def end(self, output: str, status: str, reason: str | None) -> None:
        """Note how the run on an output ended."""
        with self._transaction() as db:
            query = "UPDATE outputs SET status = ?, ended = ?, reason = ? WHERE output = ?"
            db.execute(query, (status, now(), reason, output))

    def failures(self, output: str) -> Iterator[str]:
        """Yield the failed rows of an output as JSON, in the order of their rows."""
        with _translated():
            query = "SELECT entry FROM failures WHERE output = ? ORDER BY row"
            yield from (entry for (entry,) in self._connection.execute(query, (output,)))

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
        "attempts": 1,
    }


def now() -> str:
    """Return the time as it stands in the ledger and the report: ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise OrtdeployError(f"the ledger {FILE} cannot be used: {error}") from error


@contextmanager
def open_ledger(state_dir: Path) -> Iterator[Ledger]:
    """Open the ledger of a state directory for writing, and make it if it is not there. Raises OrtdeployError."""
    with _translated():
        _make_folder(state_dir)
        connection = sqlite3.connect(state_dir / FILE, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            _check_version(connection)
            connection.execute(f"PRAGMA user_version = {LEDGER_VERSION}")
            connection.executescript(_SCHEMA)
            yield Ledger(connection, state_dir)
        finally:
            connection.close()


def _check_version(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in {0, LEDGER_VERSION}:
        raise OrtdeployError(f"the ledger {FILE} has format version {version}; this ortdeploy writes {LEDGER_VERSION}")


def read_outputs(state_dir: Path) -> tuple[OutputRecord, ...]:
    """Return what a state directory's ledger knows, without making or changing one; also while a run is live."""
    path = state_dir / FILE
    if not path.exists():
        return ()
    with _translated():
        # mode=rw and not ro: after a kill, SQLite must be able to roll the journal back before anybody can read.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)
        try:
            _check_version(connection)
            return Ledger(connection, state_dir).outputs()
        finally:
            connection.close()


@contextmanager
def hold_lock(state_dir: Path) -> Iterator[None]:
    """Hold the state directory alone. SQLite's file lock ends with the process, however it ends. Raises LockedError."""
    with _translated():
        _make_folder(state_dir)
        connection = sqlite3.connect(state_dir / LOCK, timeout=LOCK_PATIENCE, isolation_level=None)
    holder = state_dir / "lock.json"
    try:
        with _translated():
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                raise LockedError(f"{state_dir} is held by a live run{_describe(holder)}") from error
        _write_holder(holder)
        try:
            yield
        finally:
            holder.unlink(missing_ok=True)
    finally:
        connection.close()


def is_live(state_dir: Path) -> bool:
    """Tell whether a run holds the state directory at this moment; nothing is made or held for it."""
    if not (state_dir / LOCK).exists():
        return False
    with _translated():
        connection = sqlite3.connect(state_dir / LOCK, timeout=0)
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
    return False


def _write_holder(path: Path) -> None:
    holder = {"pid": os.getpid(), "host": platform.node(), "started": now()}
    try:
        path.write_text(json.dumps(holder), encoding="utf-8")
    except OSError as error:
        raise OrtdeployError(f"{path} cannot be written: {error.strerror}") from error


def _describe(holder: Path) -> str:
    try:
        known = json.loads(holder.read_text(encoding="utf-8"))
        return f": process {known['pid']} on {known['host']}, since {known['started']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _make_folder(state_dir: Path) -> None:
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OrtdeployError(f"the state directory {state_dir} cannot be made: {error.strerror}") from error
