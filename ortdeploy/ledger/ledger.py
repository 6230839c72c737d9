"""The ledger: outputs, committed parts and failed rows of all runs, in SQLite. Reports are derived from it.

Commit protocol, as tested with power cuts (a part is in exactly one of these states at any moment):

1. the part is written under a temporary name and fsynced;
2. it is renamed to its final name, and its folder is fsynced;
3. the ledger commits the part and its failed rows in one transaction. SQLite ends it by writing over the head of its
   journal (journal_mode=PERSIST), and syncs that. Where another program has it delete the journal, synchronous=EXTRA
   has it sync the folder too: else a power cut may bring the journal back, which undoes the commit.

Recovery: a temporary file is deleted. A final file that the ledger does not know is written again, because parts are
numbered as they are committed. It gets the same bytes, because the content of a part is deterministic.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.facts.contents import FileContent, FileContents
from ortdeploy.facts.data import FileState, FileStates, KnownFiles
from ortdeploy.ledger.cells import (
    BEGUN_COLUMNS,
    FEW_INPUTS,
    OUTPUT_COLUMNS,
    PART_COLUMNS,
    insert_many,
    insert_sealed,
    part_cells,
    resealed_inputs,
    seal_inputs,
)
from ortdeploy.ledger.changes import (
    check_spans,
    close_files,
    drop_files,
    end_leaving,
    files_before,
    forget_kept_rows,
    forget_those_taken_up,
    leave_to_others,
    note_empty_files,
    note_spans,
    note_state,
    read_reruns,
    total_rows,
)
from ortdeploy.ledger.contents import put_contents, read_contents, read_repaired
from ortdeploy.ledger.damage import translated, undamaged
from ortdeploy.ledger.failures import failed_of_begun, failed_of_parts, insert_failures
from ortdeploy.ledger.forgetting import forget_parts
from ortdeploy.ledger.inputs import (
    INPUT,
    add_done,
    are_done,
    check_list,
    input_cells,
    known_files,
    mark_gone,
    next_number,
    note_repairs,
    take_up_changes,
)
from ortdeploy.ledger.makers import insert_deployment, note_deployment, read_maker, read_provenance, with_provenance
from ortdeploy.ledger.records import (
    PART_DIGITS,
    Begun,
    ChangedFiles,
    FailedBefore,
    OutputRecord,
    Part,
    Repair,
    Rewrite,
    output_key,
)
from ortdeploy.ledger.rewrites import begin_rewrite, end_rewrite, forget_rewrite
from ortdeploy.ledger.stored_records import StoredRecords
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.results.rows import FailedRow


class Ledger:
    """An open ledger. Every method that writes commits before it returns. Raises OrtdeployError."""

    def __init__(self, connection: sqlite3.Connection, state_dir: Path) -> None:
        """Take a connection whose tables are there."""
        self._connection = connection
        self._state_dir = state_dir
        self._read_outputs: dict[str, tuple[object, OutputRecord | None]] = {}
        self._records = StoredRecords(connection)

    @property
    def state_dir(self) -> Path:
        """Where the ledger lies."""
        return self._state_dir

    def key(self, folder: Path) -> str:
        """Return an output folder's name in the ledger: its path from the state directory, so that both can move."""
        return output_key(folder, self._state_dir)

    def output(self, output: str) -> OutputRecord | None:
        """Return what is known of an output folder, as of one moment.

        It is read again only if this connection or another one has written since; within a transaction always.
        """
        if self._connection.in_transaction:
            return self._read(output)
        with self.at_one_moment():
            written = (self._connection.execute("PRAGMA data_version").fetchone(), self._connection.total_changes)
            if self._read_outputs.get(output, (None,))[0] != written:
                self._read_outputs[output] = (written, self._read(output))
            return self._read_outputs[output][1]

    def _read(self, output: str) -> OutputRecord | None:
        with undamaged():
            query = f"SELECT {', '.join(OUTPUT_COLUMNS)} FROM outputs WHERE output = ?"  # noqa: S608  ours
            row = self._connection.execute(query, (output,)).fetchone()
            return self._records.record(row) if row else None

    def outputs(self) -> tuple[OutputRecord, ...]:
        """Return every output that the ledger knows."""
        with undamaged():
            query = f"SELECT {', '.join(OUTPUT_COLUMNS)} FROM outputs ORDER BY output"  # noqa: S608  ours
            rows = self._connection.execute(query).fetchall()
            return tuple(self._records.record(row) for row in rows)

    def begin(
        self,
        output: str,
        *,
        made_by: MadeBy,
        job: str,
        run: str,
        files: Sequence[FileState] | None = None,
        first_row: int = 0,
        gone: Sequence[str] = (),
    ) -> None:
        """Note that a run works on an output, which files it reads, and which earlier files are gone.

        Parts that an earlier run committed or began stay; its failed rows outside of parts are dropped. Parts from now
        on are made by this deployment, which may differ from the earlier one. With `files`, these alone are underway
        from now on, with rows from `first_row` on: see `leave_to_others`.
        """
        with self._transaction() as db:
            is_same = note_deployment(db, output, made_by)
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
            forget_those_taken_up(db, output, files or ())
            present = FileStates.of(files or ())
            with resealed_inputs(db, output, map(os.fsencode, chain((cells[0] for cells in present.cells()), gone))):
                statement = (
                    "INSERT INTO inputs SELECT ?, *, 0 FROM new WHERE true ON CONFLICT (output, path) DO UPDATE SET "
                    "number = CASE WHEN done THEN excluded.number ELSE number END, "
                    "size = excluded.size, mtime_ns = excluded.mtime_ns, done = 0"
                )
                cells = input_cells(present, next_number(db, output))
                insert_many(db, statement, output, INPUT, cells)
                mark_gone(db, output, gone)
            if files is not None and leave_to_others(db, output, present, first_row):
                seal_inputs(db, output)

    def inputs(self, output: str, *, spans: bool = True) -> KnownFiles:
        """Return the input files of an output that the ledger knows, in the order of their rows.

        Without `spans`, only files of an unfinished run say which rows they have.
        """
        with undamaged(), self.at_one_moment():
            return known_files(self._connection, output, spans=spans)

    def check_inputs(self, output: str) -> None:
        """Raise OrtdeployError if the ledger's list of an output's input files is not what was written."""
        with undamaged():
            check_list(self._connection, output)
            check_spans(self._connection, output)
            read_reruns(self._connection, output)

    def files_before(self, output: str, row: int) -> int:
        """Return how many files of an unfinished run there are up to the last one with rows before `row`."""
        with undamaged():
            return files_before(self._connection, output, row)

    def cut_off(
        self, output: str, through: Sequence[str], first_row: int, dropped: Sequence[str], *, kept: bool
    ) -> None:
        """Note which files of an unfinished run are done, and drop others; rows of a begun part stay if they are kept.

        `through` are its first files, which have all rows before `first_row`. No row of those dropped is committed.
        """
        with self._transaction() as db:
            if not kept:
                forget_kept_rows(db, output)
            close_files(db, output, through, first_row)
            drop_files(db, output, dropped)
            seal_inputs(db, output)

    def are_done(self, output: str, files: Iterable[FileState]) -> bool:
        """Return whether all rows of files, in these states, are accounted for by a finished run."""
        with undamaged():
            return are_done(self._connection, output, files)

    def note_repairs(self, output: str, repairs: Iterable[Repair], run: str) -> None:
        """Note input files that had changed when their failed rows were run again."""
        with self._transaction() as db:
            note_repairs(db, output, repairs, run)

    def note_contents(self, output: str, contents: Iterable[FileContent]) -> None:
        """Note the digests of input files whose rows are accounted for."""
        packed = FileContents.of(contents)  # files are read for that, while others may want to write
        with self._transaction() as db:
            put_contents(db, output, packed)

    def contents(self, output: str) -> Mapping[FileState, bytes]:
        """Return the digests of input files by the states in which their rows were run, or failed ones again."""
        with undamaged():
            return {**read_repaired(self._connection, output), **read_contents(self._connection, output)}

    def note_gone(self, output: str, paths: Sequence[str]) -> None:
        """Note that input files whose rows are accounted for are gone."""
        with self._transaction() as db:
            mark_gone(db, output, paths)
            seal_inputs(db, output)

    def rename(self, output: str, new: str) -> None:
        """Note that an old output was renamed to make room for a new run."""
        from ortdeploy.ledger.transfer import OF_OUTPUTS  # noqa: PLC0415  few outputs are put aside

        with self._transaction() as db:
            db.execute("PRAGMA defer_foreign_keys = ON")
            for table in ("outputs", *OF_OUTPUTS):
                db.execute(f"UPDATE {table} SET output = ? WHERE output = ?", (new, output))  # noqa: S608  ours

    def copy_output(self, output: str, file: Path) -> None:
        """Write what is known of an output into a new file, from which another ledger can take it over."""
        from ortdeploy.ledger.transfer import copy_output  # noqa: PLC0415  only where shards and one machine worked

        with translated(self._state_dir):
            copy_output(self._connection, output, file)

    def take_over(self, output: str, file: Path) -> None:
        """Take over what such a file knows, as an output that this ledger does not know."""
        from ortdeploy.ledger.transfer import take_over  # noqa: PLC0415  only where a ledger was lost

        with undamaged(), self._transaction() as db:
            take_over(db, output, file)

    def remember_batch_size(self, output: str, size: int) -> None:
        """Keep the batch size that `auto` found: a run that continues uses the same."""
        with self._transaction() as db:
            db.execute("UPDATE outputs SET batch_size = ? WHERE output = ?", (size, output))

    def forget(self, output: str) -> None:
        """Drop an output whose folder the user has deleted."""
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
        spans: Iterable[tuple[str, int, int]] = (),
        contents: Iterable[FileContent] = (),
    ) -> None:
        """Commit a part whose file has its final name, with its failed rows, its origin, and the job's statistics.

        `spans` say which rows of input files are in it: path, number of the file's first row, number of its rows.
        `contents` are the digests of files that were read whole.
        """
        with self._transaction() as db:
            note_spans(db, output, spans)
            put_contents(db, output, contents)
            part = with_provenance(db, part, provenance)
            insert_sealed(db, "parts", output, PART_COLUMNS, part_cells(part))
            db.execute("DELETE FROM begun WHERE output = ?", (output,))
            db.execute("UPDATE outputs SET revision = 0 WHERE output = ?", (output,))
            insert_failures(db, output, part.number, failures)
            self._set_statistics(db, output, statistics)

    def keep_begun(
        self,
        output: str,
        begun: Begun,
        failures: Sequence[FailedRow],
        *,
        provenance: Mapping[str, Any] | None = None,
        spans: Iterable[tuple[str, int, int]] = (),
        contents: Iterable[FileContent] = (),
    ) -> Begun:
        """Keep the finished rows of a part, in place of those that an earlier run kept of it, with its new failed rows.

        `spans` and `contents` are as in `commit_part`. Return it with the digest of its origin.
        """
        with self._transaction() as db:
            note_spans(db, output, spans)
            put_contents(db, output, contents)
            part = with_provenance(db, begun.part, provenance)
            insert_sealed(db, "begun", output, BEGUN_COLUMNS, (*part_cells(part), begun.state, begun.name))
            insert_failures(db, output, part.number, failures)
        return replace(begun, part=part)

    def forget_begun(self, output: str) -> None:
        """Drop the kept rows of a part: they run again. Its failed rows are dropped when the job begins."""
        with self._transaction() as db:
            db.execute("DELETE FROM begun WHERE output = ?", (output,))

    def lose_begun(self, output: str) -> None:
        """Drop a part that may have been carried away before it was committed: its rows run again, under a new name."""
        with self._transaction() as db:
            db.execute("DELETE FROM begun WHERE output = ?", (output,))
            db.execute("UPDATE outputs SET revision = revision + 1 WHERE output = ?", (output,))

    def made_by(self, digest: str | None) -> MadeBy | None:
        """Return the deployment of a digest, which made parts; None for no digest."""
        with undamaged():
            return None if digest is None else read_maker(self._connection, digest)

    def makers(self, record: OutputRecord) -> dict[str, MadeBy]:
        """Return the deployments that made the parts of an output, by digest."""
        return {digest: one for digest in record.makers if (one := self.made_by(digest)) is not None}

    def adopt(
        self, output: str, part: Part, failures: Sequence[FailedRow], files: Sequence[FileState], made_by: MadeBy
    ) -> None:
        """Add rows that failed on another machine as a part of failed rows; no apply reads their files."""
        with self._transaction() as db:
            insert_deployment(db, made_by)
            insert_sealed(db, "parts", output, PART_COLUMNS, part_cells(part))
            insert_failures(db, output, part.number, failures)
            add_done(db, "INSERT INTO inputs", output, files, part.end)

    def set_aside(self, output: str, part: Part, failures: Sequence[FailedRow], files: Sequence[FileState]) -> None:
        """Add new files that cannot be read, one failed row each, as a part of failed rows.

        All rows of the other files are committed, so these files are done. The run itself ends later.
        """
        with self._transaction() as db:
            note_empty_files(db, output)
            db.execute("UPDATE inputs SET done = 1 WHERE output = ? AND done = 0", (output,))
            insert_sealed(db, "parts", output, PART_COLUMNS, part_cells(part))
            insert_failures(db, output, part.number, failures)
            forget_those_taken_up(db, output, files)
            note_spans(db, output, ((one.path, row.row, 1) for one, row in zip(files, failures, strict=True)))
            add_done(db, "INSERT OR REPLACE INTO inputs", output, files, part.end)

    def set_aside_again(self, output: str, part: int, failure: FailedRow, file: FileState) -> None:
        """Note that a file that could not be read has changed, and cannot be read either."""
        with self._transaction() as db:
            insert_failures(db, output, part, [failure])
            note_state(db, output, file)

    @staticmethod
    def _set_statistics(db: sqlite3.Connection, output: str, statistics: Mapping[str, Any] | None) -> None:
        if statistics is not None:
            query = "UPDATE outputs SET statistics = ? WHERE output = ?"
            db.execute(query, (json.dumps(statistics, separators=(",", ":")), output))

    def provenance(self, digests: Iterable[str]) -> dict[str, Any]:
        """Return the origins of parts by digest, and those of their first rows if another run began them."""
        with undamaged():
            return read_provenance(self._connection, digests)

    def note_failures(
        self, output: str, part: int, failures: Sequence[FailedRow], *, spans: Iterable[tuple[str, int, int]] = ()
    ) -> None:
        """Keep the failed rows of an abandoned part, so that the user sees them. `spans` are as in `commit_part`."""
        with self._transaction() as db:
            note_spans(db, output, spans)
            insert_failures(db, output, part, failures)

    def end(
        self,
        output: str,
        status: str,
        reason: str | None,
        ended: str | None = None,
        statistics: Mapping[str, Any] | None = None,
        *,
        contents: Iterable[FileContent] = (),
    ) -> None:
        """Note how the run on an output ended, and its measurements; if it is done, so are its input files.

        `contents` are as in `note_contents`.
        """
        with self._transaction() as db:
            put_contents(db, output, contents)
            self._set_statistics(db, output, statistics)
            query = "UPDATE outputs SET status = ?, ended = ?, reason = ? WHERE output = ?"
            said = None if reason is None else reason.encode(errors="backslashreplace").decode()  # it may name a file
            db.execute(query, (status, ended or now(), said, output))
            if status == "done":
                note_empty_files(db, output)
                query = "SELECT path FROM inputs WHERE output = ? AND done = 0 LIMIT ?"
                underway = db.execute(query, (output, FEW_INPUTS + 1)).fetchall()
                with resealed_inputs(db, output, (path for (path,) in underway)):
                    db.execute("UPDATE inputs SET done = 1 WHERE output = ? AND done = 0", (output,))
                    db.execute("UPDATE outputs SET first_row = ? WHERE output = ?", (total_rows(db, output), output))

    def note_retried(self, output: str, run: str, started: str, statistics: Mapping[str, Any] | None = None) -> None:
        """Note that a run has run rows of an output again: it is the last one. How the job ended does not change."""
        with self._transaction() as db:
            self._set_statistics(db, output, statistics)
            ended = "CASE WHEN ended IS NULL THEN NULL ELSE ? END"
            statement = f"UPDATE outputs SET run = ?, started = ?, ended = {ended} WHERE output = ?"  # noqa: S608  ours
            db.execute(statement, (run, started, now(), output))

    def failures(self, output: str) -> Iterator[str]:
        """Yield the failed rows of an output as JSON, in the order of their rows."""
        with translated(self._state_dir):
            query = "SELECT entry FROM failures WHERE output = ? ORDER BY row"
            yield from (entry for (entry,) in self._connection.execute(query, (output,)))

    def failed_rows(self, output: str) -> dict[int, dict[int, FailedBefore]]:
        """Return the failed rows of committed parts, with their attempts, by part and row."""
        with undamaged():
            return failed_of_parts(self._connection, output)

    def failed_of_begun(self, output: str, begun: Begun) -> dict[int, FailedBefore]:
        """Return the failed rows of a part that was begun, with their attempts, by row."""
        with undamaged():
            return failed_of_begun(self._connection, output, begun)

    def take_up_changes(self, output: str, changes: ChangedFiles, run: str) -> None:
        """Note which changed files run again, and which count as new: their old rows leave their parts."""
        with self._transaction() as db:
            take_up_changes(db, output, changes, run)

    def begin_rewrite(self, output: str, rewrite: Rewrite, made_by: MadeBy | None = None) -> None:
        """Note that a rewritten part takes its place from now on; `made_by` made its new rows, if there are any."""
        with self._transaction() as db:
            if made_by is not None:
                insert_deployment(db, made_by)
            (before,) = (one for one in self._records.parts(output) if one.number == rewrite.part.number)
            begin_rewrite(db, output, rewrite, before)

    def end_rewrite(self, output: str, rewrite: Rewrite) -> None:
        """Note that the files of a rewritten part have their names."""
        with self._transaction() as db:
            end_rewrite(db, output, rewrite)

    def forget_rewrite(self, output: str, rewrite: Rewrite) -> None:
        """Drop a rewrite whose file is gone: its rows run again, into a file with a new name."""
        with self._transaction() as db:
            forget_rewrite(db, output, rewrite.part.number)

    def forget_parts(self, output: str, parts: Sequence[Part], files: Iterable[str]) -> None:
        """Forget the first parts of an output and the input files of their rows; their counts stay."""
        with self._transaction() as db:
            forget_parts(db, output, parts, files)

    def end_leaving(self, output: str) -> None:
        """Note that all rows that were to leave their parts have left."""
        with self._transaction() as db:
            end_leaving(db, output)

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Read one consistent state inside the block, or one around it. A commit of a live run waits until it ends."""
        if self._connection.in_transaction:
            yield
            return
        with translated(self._state_dir):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.commit()  # nothing, if SQLite could read no further and has ended it itself

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with translated(self._state_dir), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


def now() -> str:
    """Return the time as the ledger and the report have it: ISO 8601 in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
