"""Reads and notes which input files the rows of an output come from, and in which states."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from ortdeploy.facts.data import GONE, FileState, FileStates, KnownFile, KnownFiles
from ortdeploy.files.compact_list import in_blocks
from ortdeploy.ledger.cells import insert_many, seal_inputs, seal_of_inputs
from ortdeploy.ledger.changes import begin_leaving, begin_reruns, check_spans, close_files, read_reruns, total_rows
from ortdeploy.ledger.records import UNREADABLE, ChangedFiles, FailedBefore, Repair

INPUT = ("path", "number", "size", "mtime_ns")
"""The columns of `inputs` that `input_cells` yields."""


def known_files(db: sqlite3.Connection, output: str, *, spans: bool) -> KnownFiles:
    """Return the input files of an output, in the order of their rows; `spans`: with the rows that each of them has.

    Raises ValueError, TypeError if they are not what was written.
    """
    check_list(db, output)
    check_spans(db, output)
    found = KnownFiles.pack_columns(_by_column(_input_rows(db, output, spans=spans)))
    found.beside = _beside(db, output, found)
    return found


def _input_rows(db: sqlite3.Connection, output: str, *, spans: bool) -> sqlite3.Cursor:
    """Return the cells of input files; to look up which rows each of them has takes as long as all the rest."""
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


def _beside(db: sqlite3.Connection, output: str, files: KnownFiles) -> dict[str, KnownFile]:
    """Return the files that were repaired, or whose rows run again, by path, complete with that."""
    repaired = {os.fsdecode(path): tuple(states) for path, states in _repairs(db, output).items()}
    reruns = {one.state.path: one.state for one in read_reruns(db, output)}
    unreadable = {one.path: row for row, one in _unreadable(db, output)}
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


def _unreadable(db: sqlite3.Connection, output: str) -> Iterator[tuple[int, FailedBefore]]:
    """Yield the failed rows that stand for files that could not be read.

    There may be a million failed rows. The sign keeps SQLite to the index of these few.
    """
    query = f"SELECT row, entry FROM failures WHERE +output = ? AND instr(entry, '\"{UNREADABLE}\"')"  # noqa: S608  ours
    for row, entry in db.execute(query, (output,)):
        from ortdeploy.ledger.letters import failed_before  # noqa: PLC0415  only where files failed

        before = failed_before(row, entry)
        if before.unreadable:
            yield row, before


def _repairs(db: sqlite3.Connection, output: str) -> dict[bytes, list[FileState]]:
    """Return the later states of files, in which their failed rows were run again, by path."""
    found: dict[bytes, list[FileState]] = {}
    query = "SELECT path, size, mtime_ns FROM repairs WHERE output = ?"
    for path, size, mtime_ns in db.execute(query, (output,)):
        found.setdefault(path, []).append(FileState(path=os.fsdecode(path), size=size, mtime_ns=mtime_ns))
    return found


def check_list(db: sqlite3.Connection, output: str) -> None:
    """Raise ValueError if the list of an output's input files is not what was written."""
    query = "SELECT inputs_seal FROM outputs WHERE output = ?"
    sealed = db.execute(query, (output,)).fetchone()
    if sealed is not None and sealed[0] != seal_of_inputs(db, output):
        raise ValueError("its list of input files is not what was written")


def next_number(db: sqlite3.Connection, output: str) -> int:
    """Return the number of the next input file."""
    query = "SELECT COALESCE(MAX(number) + 1, 0) FROM inputs WHERE output = ?"
    number: int = db.execute(query, (output,)).fetchone()[0]
    return number


def mark_gone(db: sqlite3.Connection, output: str, paths: Sequence[str]) -> None:
    """Note that files whose rows are accounted for are gone."""
    rows = [(GONE, output, os.fsencode(path)) for path in paths]
    db.executemany("UPDATE inputs SET done = ? WHERE output = ? AND path = ? AND done", rows)


def input_cells(files: FileStates, number: int) -> Iterator[tuple[Any, ...]]:
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


def note_repairs(db: sqlite3.Connection, output: str, repairs: Iterable[Repair], run: str) -> None:
    """Note input files that had changed when their failed rows were run again."""
    rows = [
        (output, os.fsencode(one.state.path), one.state.size, one.state.mtime_ns, one.sha256, one.before, run)
        for one in repairs
    ]
    db.executemany("INSERT OR IGNORE INTO repairs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def take_up_changes(db: sqlite3.Connection, output: str, changes: ChangedFiles, run: str) -> None:
    """Note which changed files run again, and which count as new: their old rows leave their parts."""
    if changes.first_row is not None:
        close_files(db, output, changes.through, changes.first_row)
        db.execute("DELETE FROM begun WHERE output = ?", (output,))
    begin_leaving(db, output, [one.path for one in changes.anew])
    begin_reruns(db, output, changes.again)
    first = next_number(db, output)
    db.executemany(
        "UPDATE inputs SET number = ?, size = ?, mtime_ns = ?, done = 0 WHERE output = ? AND path = ?",
        [
            (number, one.size, one.mtime_ns, output, os.fsencode(one.path))
            for number, one in enumerate(changes.anew, first)
        ],
    )
    query = "UPDATE outputs SET status = 'running', run = ?, ended = NULL, reason = NULL WHERE output = ?"
    db.execute(query, (run, output))
    seal_inputs(db, output)


def add_done(db: sqlite3.Connection, insert: str, output: str, files: Sequence[FileState], end: int) -> None:
    """Add files whose rows are accounted for by now, up to row `end`; `insert` is the statement's beginning."""
    cells = input_cells(FileStates.of(files), next_number(db, output))
    insert_many(db, f"{insert} SELECT ?, *, 1 FROM new", output, INPUT, cells)  # noqa: S608  ours
    db.execute("UPDATE outputs SET first_row = ? WHERE output = ?", (end, output))
    seal_inputs(db, output)


def are_done(db: sqlite3.Connection, output: str, files: Iterable[FileState]) -> bool:
    """Return whether all rows of files, in these states, are accounted for by a finished run."""
    query = "SELECT size, mtime_ns FROM inputs WHERE output = ? AND path = ? AND done"
    return all(
        db.execute(query, (output, os.fsencode(one.path))).fetchone() == (one.size, one.mtime_ns) for one in files
    )
