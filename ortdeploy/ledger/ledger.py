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

import hashlib
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
from ortdeploy.facts.data import GONE, FileState, FileStates, KnownFile, KnownFiles
from ortdeploy.files.compact_list import in_blocks
from ortdeploy.ledger.cells import (
    BEGUN_COLUMNS,
    DEPLOYMENT_COLUMNS,
    FEW_INPUTS,
    OUTPUT_COLUMNS,
    PART_COLUMNS,
    REVISION_COLUMNS,
    check_time,
    insert_many,
    insert_sealed,
    part_cells,
    resealed_inputs,
    row_numbers,
    seal_inputs,
    seal_of_inputs,
    typed,
    unsealed,
)
from ortdeploy.ledger.changes import (
    begin_leaving,
    begin_reruns,
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
    read_leaving,
    read_reruns,
    read_withdrawn,
    total_rows,
)
from ortdeploy.ledger.contents import put_contents, read_contents, read_repaired
from ortdeploy.ledger.damage import translated, undamaged
from ortdeploy.ledger.forgetting import BEGUN_WITH, forget_parts, read_forgotten
from ortdeploy.ledger.records import (
    PART_DIGITS,
    STATUSES,
    UNREADABLE,
    Begun,
    ChangedFiles,
    FailedBefore,
    OutputRecord,
    Part,
    Repair,
    Revision,
    Rewrite,
    output_key,
)
from ortdeploy.ledger.rewrites import begin_rewrite, end_rewrite, forget_rewrite, read_rewrites
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.results.rows import FailedRow

_INPUT = ("path", "number", "size", "mtime_ns")
"""The columns of `inputs` that `_input_cells` yields."""


class Ledger:
    """An open ledger. Every method that writes commits before it returns. Raises OrtdeployError."""

    def __init__(self, connection: sqlite3.Connection, state_dir: Path) -> None:
        """Take a connection whose tables are there."""
        self._connection = connection
        self._state_dir = state_dir
        self._read_outputs: dict[str, tuple[object, OutputRecord | None]] = {}
        self._read_parts: dict[int, tuple[tuple[Any, ...], Part]] = {}  # those last read: only others are checked

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
            return self._record(row) if row else None

    def outputs(self) -> tuple[OutputRecord, ...]:
        """Return every output that the ledger knows."""
        with undamaged():
            query = f"SELECT {', '.join(OUTPUT_COLUMNS)} FROM outputs ORDER BY output"  # noqa: S608  ours
            rows = self._connection.execute(query).fetchall()
            return tuple(self._record(row) for row in rows)

    def _record(self, row: Sequence[Any]) -> OutputRecord:
        values = typed(OUTPUT_COLUMNS, row)
        identity, statistics = json.loads(values["identity"]), json.loads(values["statistics"])
        if not isinstance(identity, dict) or not isinstance(statistics, dict):
            raise TypeError("the identity or the statistics of an output are none")
        if values["status"] not in STATUSES:
            raise ValueError(f"the status of an output is {values['status']!r}")
        check_time(values["started"])
        check_time(values["ended"])
        known: dict[str, Any] = {"identity": identity, "statistics": statistics, "parts": self._parts(values["output"])}
        query = "SELECT COUNT(*) FROM failures WHERE output = ?"
        (noted,) = self._connection.execute(query, (values["output"],)).fetchone()
        known |= {"begun": self._begun(values["output"]), "noted_failures": noted}
        return OutputRecord(**{**values, **known, **self._changes(values["output"])})

    def _changes(self, output: str) -> dict[str, Any]:
        """Return the fields of an OutputRecord about files that have changed, and about forgotten parts."""
        db = self._connection
        return {
            "rewrites": read_rewrites(db, output),
            "reruns": read_reruns(db, output),
            "leaving": read_leaving(db, output),
            "forgotten": read_forgotten(db, output),
        }

    def _parts(self, output: str) -> tuple[Part, ...]:
        query = f"SELECT {', '.join(PART_COLUMNS)}, seal FROM parts WHERE output = ? ORDER BY number"  # noqa: S608  ours
        revisions, withdrawn = self._revisions(output), read_withdrawn(self._connection, output)
        before, self._read_parts, found = self._read_parts, {}, []
        for row in self._connection.execute(query, (output,)):
            known = before.get(row[0])
            part = _part_of(row) if known is None or known[0] != row else known[1]
            self._read_parts[row[0]] = (row, part)
            later, gone = tuple(revisions.pop(part.number, ())), tuple(withdrawn.get(part.number, ()))
            found.append(replace(part, revisions=later, withdrawn=gone) if later or gone else part)
        if revisions:
            raise ValueError(f"part {min(revisions)}, which there is not, has a file that was written later")
        return tuple(found)

    def _revisions(self, output: str) -> dict[int, list[Revision]]:
        """Return the files that were written later than their parts, by part."""
        query = (
            f"SELECT {', '.join(REVISION_COLUMNS)}, seal FROM revisions WHERE output = ? "  # noqa: S608  ours
            "ORDER BY part, revision"
        )
        found: dict[int, list[Revision]] = {}
        for row in self._connection.execute(query, (output,)):
            values = typed(REVISION_COLUMNS, unsealed(row, f"what stands there of a later file of part {row[0]}"))
            part = values.pop("part")
            found.setdefault(part, []).append(Revision(**{**values, "rows": row_numbers(values["rows"])}))
        return found

    def _begun(self, output: str) -> Begun | None:
        query = f"SELECT {', '.join(BEGUN_COLUMNS)}, seal FROM begun WHERE output = ?"  # noqa: S608  ours
        row = self._connection.execute(query, (output,)).fetchone()
        if row is None:
            return None
        values = typed(BEGUN_COLUMNS, unsealed(row, f"what stands there of part {row[0]}, which was begun,"))
        state, name = values.pop("state"), values.pop("name")
        part = Part(**{**values, "skipped_rows": row_numbers(values["skipped_rows"])})
        return Begun(part=part, state=state, name=name)

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
            forget_those_taken_up(db, output, files or ())
            present = FileStates.of(files or ())
            with resealed_inputs(db, output, map(os.fsencode, chain((cells[0] for cells in present.cells()), gone))):
                statement = (
                    "INSERT INTO inputs SELECT ?, *, 0 FROM new WHERE true ON CONFLICT (output, path) DO UPDATE SET "
                    "number = CASE WHEN done THEN excluded.number ELSE number END, "
                    "size = excluded.size, mtime_ns = excluded.mtime_ns, done = 0"
                )
                cells = _input_cells(present, self._next_number(db, output))
                insert_many(db, statement, output, _INPUT, cells)
                self._mark_gone(db, output, gone)
            if files is not None and leave_to_others(db, output, present, first_row):
                seal_inputs(db, output)

    @staticmethod
    def _next_number(db: sqlite3.Connection, output: str) -> int:
        query = "SELECT COALESCE(MAX(number) + 1, 0) FROM inputs WHERE output = ?"
        number: int = db.execute(query, (output,)).fetchone()[0]
        return number

    def inputs(self, output: str, *, spans: bool = True) -> KnownFiles:
        """Return the input files of an output that the ledger knows, in the order of their rows.

        Without `spans`, only files of an unfinished run say which rows they have.
        """
        with undamaged(), self.at_one_moment():
            self._check_inputs(output)
            check_spans(self._connection, output)
            found = KnownFiles.pack_columns(_by_column(self._input_rows(output, spans=spans)))
            found.beside = self._beside(output, found)
            return found

    def _input_rows(self, output: str, *, spans: bool) -> sqlite3.Cursor:
        """Return the cells of input files; to look up which rows each of them has takes as long as all the rest."""
        db = self._connection
        underway = "SELECT EXISTS (SELECT * FROM inputs WHERE output = ? AND NOT done)"
        if not spans and db.execute(underway, (output,)).fetchone() == (0,):
            query = "SELECT path, size, mtime_ns, done, -1, -1 FROM inputs WHERE output = ? ORDER BY number"
            return db.execute(query, (output,))
        query = (
            "SELECT inputs.path, size, mtime_ns, done, CASE WHEN first_row <= :total THEN first_row ELSE -1 END, "
            "CASE WHEN first_row <= :total THEN MIN(rows, :total - first_row) ELSE -1 END FROM inputs LEFT JOIN spans "
            "ON spans.output = inputs.output AND spans.path = inputs.path AND (:spans OR NOT done) "
            "WHERE inputs.output = :output ORDER BY number"
        )
        return db.execute(query, {"output": output, "total": total_rows(db, output), "spans": spans})

    def _beside(self, output: str, files: KnownFiles) -> dict[str, KnownFile]:
        """Return the files that were repaired, or whose rows run again, by path, complete with that."""
        repaired = {os.fsdecode(path): tuple(states) for path, states in self._repairs(output).items()}
        reruns = {one.state.path: one.state for one in read_reruns(self._connection, output)}
        unreadable = {one.path: row for row, one in self._unreadable(output)}
        paths = {*repaired, *reruns, *unreadable}
        found = {
            cells[0]: replace(files.make(cells), repaired=repaired.get(cells[0], ()), rerun=reruns.get(cells[0]))
            for cells in (files.cells() if paths else ())
            if cells[0] in paths
        }
        for path, one in found.items():
            if one.done and path in unreadable:
                found[path] = replace(one, unreadable=True, span=(unreadable[path], 1))
        return found

    def _unreadable(self, output: str) -> Iterator[tuple[int, FailedBefore]]:
        """Yield the failed rows that stand for files that could not be read.

        There may be a million failed rows. The sign keeps SQLite to the index of these few.
        """
        query = f"SELECT row, entry FROM failures WHERE +output = ? AND instr(entry, '\"{UNREADABLE}\"')"  # noqa: S608  ours
        for row, entry in self._connection.execute(query, (output,)):
            from ortdeploy.ledger.letters import failed_before  # noqa: PLC0415  only where files failed

            before = failed_before(row, entry)
            if before.unreadable:
                yield row, before

    def check_inputs(self, output: str) -> None:
        """Raise OrtdeployError if the ledger's list of an output's input files is not what was written."""
        with undamaged():
            self._check_inputs(output)
            check_spans(self._connection, output)
            read_reruns(self._connection, output)

    def _check_inputs(self, output: str) -> None:
        query = "SELECT inputs_seal FROM outputs WHERE output = ?"
        sealed = self._connection.execute(query, (output,)).fetchone()
        if sealed is not None and sealed[0] != seal_of_inputs(self._connection, output):
            raise ValueError("its list of input files is not what was written")

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
        query = "SELECT size, mtime_ns FROM inputs WHERE output = ? AND path = ? AND done"
        with undamaged():
            return all(
                self._connection.execute(query, (output, os.fsencode(one.path))).fetchone() == (one.size, one.mtime_ns)
                for one in files
            )

    def _repairs(self, output: str) -> dict[bytes, list[FileState]]:
        """Return the later states of files, in which their failed rows were run again, by path."""
        found: dict[bytes, list[FileState]] = {}
        query = "SELECT path, size, mtime_ns FROM repairs WHERE output = ?"
        for path, size, mtime_ns in self._connection.execute(query, (output,)):
            found.setdefault(path, []).append(FileState(path=os.fsdecode(path), size=size, mtime_ns=mtime_ns))
        return found

    def note_repairs(self, output: str, repairs: Iterable[Repair], run: str) -> None:
        """Note input files that had changed when their failed rows were run again."""
        rows = [
            (output, os.fsencode(one.state.path), one.state.size, one.state.mtime_ns, one.sha256, one.before, run)
            for one in repairs
        ]
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO repairs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

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
            self._mark_gone(db, output, paths)
            seal_inputs(db, output)

    @staticmethod
    def _mark_gone(db: sqlite3.Connection, output: str, paths: Sequence[str]) -> None:
        rows = [(GONE, output, os.fsencode(path)) for path in paths]
        db.executemany("UPDATE inputs SET done = ? WHERE output = ? AND path = ? AND done", rows)

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

        with translated():
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
            part = _with_provenance(db, part, provenance)
            insert_sealed(db, "parts", output, PART_COLUMNS, part_cells(part))
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
        spans: Iterable[tuple[str, int, int]] = (),
        contents: Iterable[FileContent] = (),
    ) -> Begun:
        """Keep the finished rows of a part, in place of those that an earlier run kept of it, with its new failed rows.

        `spans` and `contents` are as in `commit_part`. Return it with the digest of its origin.
        """
        with self._transaction() as db:
            note_spans(db, output, spans)
            put_contents(db, output, contents)
            part = _with_provenance(db, begun.part, provenance)
            insert_sealed(db, "begun", output, BEGUN_COLUMNS, (*part_cells(part), begun.state, begun.name))
            self._insert_failures(db, output, part.number, failures)
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
        if digest is None:
            return None
        query = f"SELECT {', '.join(DEPLOYMENT_COLUMNS)} FROM deployments WHERE digest = ?"  # noqa: S608  ours
        with undamaged():
            row = self._connection.execute(query, (digest,)).fetchone()
            if row is None:
                raise ValueError("the deployment that made a part is not noted")
            values = typed(DEPLOYMENT_COLUMNS, row)
            known = {name: json.loads(values[name]) for name in ("identity", "layout")}
            found = MadeBy(name=values["name"], profile=values["profile"], **known)
            if found.digest != digest:
                raise ValueError("the deployment that made a part is not what was written")
            return found

    def makers(self, record: OutputRecord) -> dict[str, MadeBy]:
        """Return the deployments that made the parts of an output, by digest."""
        return {digest: one for digest in record.makers if (one := self.made_by(digest)) is not None}

    def adopt(
        self, output: str, part: Part, failures: Sequence[FailedRow], files: Sequence[FileState], made_by: MadeBy
    ) -> None:
        """Add rows that failed on another machine as a part of failed rows; no apply reads their files."""
        with self._transaction() as db:
            _insert_deployment(db, made_by)
            insert_sealed(db, "parts", output, PART_COLUMNS, part_cells(part))
            self._insert_failures(db, output, part.number, failures)
            cells = _input_cells(FileStates.of(files), self._next_number(db, output))
            insert_many(db, "INSERT INTO inputs SELECT ?, *, 1 FROM new", output, _INPUT, cells)
            query = "UPDATE outputs SET first_row = ? WHERE output = ?"
            db.execute(query, (part.start + part.rows, output))
            seal_inputs(db, output)

    def set_aside(self, output: str, part: Part, failures: Sequence[FailedRow], files: Sequence[FileState]) -> None:
        """Add new files that cannot be read, one failed row each, as a part of failed rows.

        All rows of the other files are committed, so these files are done. The run itself ends later.
        """
        with self._transaction() as db:
            note_empty_files(db, output)
            db.execute("UPDATE inputs SET done = 1 WHERE output = ? AND done = 0", (output,))
            insert_sealed(db, "parts", output, PART_COLUMNS, part_cells(part))
            self._insert_failures(db, output, part.number, failures)
            forget_those_taken_up(db, output, files)
            note_spans(db, output, ((one.path, row.row, 1) for one, row in zip(files, failures, strict=True)))
            cells = _input_cells(FileStates.of(files), self._next_number(db, output))
            insert_many(db, "INSERT OR REPLACE INTO inputs SELECT ?, *, 1 FROM new", output, _INPUT, cells)
            query = "UPDATE outputs SET first_row = ? WHERE output = ?"
            db.execute(query, (part.start + part.rows, output))
            seal_inputs(db, output)

    def set_aside_again(self, output: str, part: int, failure: FailedRow, file: FileState) -> None:
        """Note that a file that could not be read has changed, and cannot be read either."""
        with self._transaction() as db:
            self._insert_failures(db, output, part, [failure])
            note_state(db, output, file)

    @staticmethod
    def _set_statistics(db: sqlite3.Connection, output: str, statistics: Mapping[str, Any] | None) -> None:
        if statistics is not None:
            query = "UPDATE outputs SET statistics = ? WHERE output = ?"
            db.execute(query, (json.dumps(statistics, separators=(",", ":")), output))

    def provenance(self, digests: Iterable[str]) -> dict[str, Any]:
        """Return the origins of parts by digest, and those of their first rows if another run began them."""
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

    def note_failures(
        self, output: str, part: int, failures: Sequence[FailedRow], *, spans: Iterable[tuple[str, int, int]] = ()
    ) -> None:
        """Keep the failed rows of an abandoned part, so that the user sees them. `spans` are as in `commit_part`."""
        with self._transaction() as db:
            note_spans(db, output, spans)
            self._insert_failures(db, output, part, failures)

    def _insert_failures(self, db: sqlite3.Connection, output: str, part: int, failures: Sequence[FailedRow]) -> None:
        if not failures:
            return
        from ortdeploy.ledger.letters import letter  # noqa: PLC0415  only where rows failed

        rows = [(output, failure.row, part, letter(failure)) for failure in failures]
        db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", rows)

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

    def note_retried(self, output: str) -> None:
        """Note that rows of an ended run have run again: its last run ended now. How it ended does not change."""
        with self._transaction() as db:
            db.execute("UPDATE outputs SET ended = ? WHERE output = ? AND ended IS NOT NULL", (now(), output))

    def failures(self, output: str) -> Iterator[str]:
        """Yield the failed rows of an output as JSON, in the order of their rows."""
        with translated():
            query = "SELECT entry FROM failures WHERE output = ? ORDER BY row"
            yield from (entry for (entry,) in self._connection.execute(query, (output,)))

    def failed_rows(self, output: str) -> dict[int, dict[int, FailedBefore]]:
        """Return the failed rows of committed parts, with their attempts, by part and row."""
        query = (
            "SELECT part, row, entry, part IN (SELECT number FROM parts WHERE output = ?) FROM failures "
            "WHERE output = ? ORDER BY row"
        )
        found: dict[int, dict[int, FailedBefore]] = {}
        with undamaged():
            rows = self._connection.execute(query, (output, output))
            first = rows.fetchone()
            if first is None:
                return found
            from ortdeploy.ledger.letters import failed_before  # noqa: PLC0415  only where rows failed

            for part, row, entry, is_committed in chain((first,), rows):
                before = failed_before(row, entry)
                if is_committed:
                    found.setdefault(part, {})[row] = before
        return found

    def failed_of_begun(self, output: str, begun: Begun) -> dict[int, FailedBefore]:
        """Return the failed rows of a part that was begun, with their attempts, by row."""
        from ortdeploy.ledger.letters import failed_before  # noqa: PLC0415  only where a part was begun

        query = "SELECT row, entry FROM failures WHERE output = ? AND part = ? AND row < ? ORDER BY row"
        with undamaged():
            found = self._connection.execute(query, (output, begun.part.number, begun.end)).fetchall()
            return {row: failed_before(row, entry) for row, entry in found}

    def take_up_changes(self, output: str, changes: ChangedFiles, run: str) -> None:
        """Note which changed files run again, and which count as new: their old rows leave their parts."""
        again, anew = changes.again, changes.anew
        with self._transaction() as db:
            if changes.first_row is not None:
                close_files(db, output, changes.through, changes.first_row)
                db.execute("DELETE FROM begun WHERE output = ?", (output,))
            begin_leaving(db, output, [one.path for one in anew])
            begin_reruns(db, output, again)
            first = self._next_number(db, output)
            db.executemany(
                "UPDATE inputs SET number = ?, size = ?, mtime_ns = ?, done = 0 WHERE output = ? AND path = ?",
                [
                    (number, one.size, one.mtime_ns, output, os.fsencode(one.path))
                    for number, one in enumerate(anew, first)
                ],
            )
            query = "UPDATE outputs SET status = 'running', run = ?, ended = NULL, reason = NULL WHERE output = ?"
            db.execute(query, (run, output))
            seal_inputs(db, output)

    def begin_rewrite(self, output: str, rewrite: Rewrite, made_by: MadeBy | None = None) -> None:
        """Note that a rewritten part takes its place from now on; `made_by` made its new rows, if there are any."""
        with self._transaction() as db:
            if made_by is not None:
                _insert_deployment(db, made_by)
            (before,) = (one for one in self._parts(output) if one.number == rewrite.part.number)
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
        with translated():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.commit()  # nothing, if SQLite could read no further and has ended it itself

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with translated(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


def _part_of(row: Sequence[Any]) -> Part:
    """Return the part of a row. Raises ValueError, TypeError if the row is not what was written."""
    values = typed(PART_COLUMNS, unsealed(row, f"what stands there of part {row[0]}"))
    return Part(**{**values, "skipped_rows": row_numbers(values["skipped_rows"])})


def _input_cells(files: FileStates, number: int) -> Iterator[tuple[Any, ...]]:
    """Yield path, number, size and time of each file; `number` is the first one's."""
    for names, sizes, times in files.by_column():
        numbers = range(number, number + len(sizes))
        yield from zip(os.fsencode(names).split(b"\0"), numbers, sizes, times, strict=True)
        number = numbers.stop


def _by_column(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of input files as packed lists take them."""
    for some in in_blocks(rows):
        paths, *columns = zip(*some, strict=True)
        yield os.fsdecode(b"\0".join(paths)), *columns


def _with_provenance(db: sqlite3.Connection, part: Part, provenance: Mapping[str, Any] | None) -> Part:
    """Keep a part's origin, and return the part with the origin's digest."""
    if provenance is None:
        return part
    digest, entry = provenance_entry(provenance)
    db.execute("INSERT OR IGNORE INTO provenance VALUES (?, ?)", (digest, entry))
    return replace(part, provenance=digest)


def provenance_entry(provenance: Mapping[str, Any]) -> tuple[str, str]:
    """Return the digest of a part's origin, and the origin as the ledger's JSON."""
    entry = json.dumps(provenance, sort_keys=True)
    return hashlib.sha256(entry.encode()).hexdigest(), entry


def _note_deployment(db: sqlite3.Connection, output: str, made_by: MadeBy) -> bool:
    """Note the deployment that makes parts from now on, and that of earlier parts for which none was noted.

    Return whether its identity, on which results depend, is the same as before.
    """
    _insert_deployment(db, made_by)
    row = db.execute("SELECT identity, deployment FROM outputs WHERE output = ?", (output,)).fetchone()
    identity = dict(made_by.identity) if row is None else json.loads(row[0])
    is_same: bool = identity == dict(made_by.identity)
    before = made_by if is_same else MadeBy(name=row[1], profile=None, identity=identity, layout=None)
    query = f"SELECT {', '.join(PART_COLUMNS)} FROM parts WHERE output = ? AND deployment IS NULL"  # noqa: S608  ours
    place = list(PART_COLUMNS).index("deployment")
    for cells in db.execute(query, (output,)).fetchall():
        _insert_deployment(db, before)
        insert_sealed(db, "parts", output, PART_COLUMNS, (*cells[:place], before.digest, *cells[place + 1 :]))
    return is_same


def _insert_deployment(db: sqlite3.Connection, one: MadeBy) -> None:
    db.execute(
        "INSERT OR IGNORE INTO deployments (digest, name, profile, identity, layout) VALUES (?, ?, ?, ?, ?)",
        (one.digest, one.name, one.profile, json.dumps(dict(one.identity)), json.dumps(one.layout)),
    )


def now() -> str:
    """Return the time as the ledger and the report have it: ISO 8601 in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
