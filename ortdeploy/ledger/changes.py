"""The ledger's tables for input files that change: which rows files have, which run again, which leave their parts.

The functions work on an open connection, within their caller's transaction.
"""

import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.ledger.cells import (
    add_functions,
    insert_many,
    insert_sealed,
    seal_inputs,
    seal_of_span,
    sealed_rows,
    typed,
)
from ortdeploy.ledger.records import Rerun, Span

OF_CHANGES = ("spans", "reruns", "leaving", "withdrawn", "rewrites", "forgotten")
"""The tables, by output, that ledger version 5 added."""

_SPAN: Mapping[str, Any] = {"first_row": int, "rows": int}
_WITHDRAWN: Mapping[str, Any] = {"part": int, **_SPAN}
_RERUN: Mapping[str, Any] = {"size": int, "mtime_ns": int, "through": int}


def total_rows(db: sqlite3.Connection, output: str) -> int:
    """Return how many rows committed parts have, forgotten parts included."""
    query = (
        "SELECT (SELECT COALESCE(SUM(rows), 0) FROM parts WHERE output = ?) + "
        "(SELECT COALESCE(SUM(rows), 0) FROM forgotten WHERE output = ?)"
    )
    (total,) = db.execute(query, (output, output)).fetchone()
    return int(total)


def note_spans(db: sqlite3.Connection, output: str, spans: Iterable[tuple[str, int, int]]) -> None:
    """Note which rows files have, of those that were run; of two spans with the same first row, the longer one counts.

    A span is a path, the number of the file's first row in the job, and its number of rows.
    """
    add_functions(db)
    rows = "excluded.rows"
    most = f"(CASE WHEN spans.first_row = excluded.first_row THEN MAX(spans.rows, {rows}) ELSE {rows} END)"
    statement = (
        f"INSERT INTO spans SELECT ?, path, first_row, rows, {seal_of_span('first_row', 'rows')} FROM new WHERE true "  # noqa: S608  ours
        f"ON CONFLICT (output, path) DO UPDATE SET first_row = excluded.first_row, rows = {most}, "
        f"seal = {seal_of_span('excluded.first_row', most)}"
    )
    cells = ((os.fsencode(path), *span) for path, *span in spans)
    insert_many(db, statement, output, ("path", "first_row", "rows"), cells)


def check_spans(db: sqlite3.Connection, output: str) -> None:
    """Raise ValueError if the noted spans of files are not what was written."""
    add_functions(db)
    is_typed = "typeof(path) = 'blob' AND typeof(first_row) = 'integer' AND typeof(rows) = 'integer'"
    is_sealed = f"seal IS {seal_of_span('first_row', 'rows')}"
    query = f"SELECT EXISTS (SELECT * FROM spans WHERE output = ? AND NOT ({is_sealed} AND {is_typed}))"  # noqa: S608  ours
    if db.execute(query, (output,)).fetchone() != (0,):
        raise ValueError("which rows an input file has is not what was written")


def read_spans(db: sqlite3.Connection, output: str) -> dict[bytes, Span]:
    """Return which rows files have, by path. Raises ValueError if the noted spans are not what was written."""
    check_spans(db, output)
    query = "SELECT path, first_row, rows FROM spans WHERE output = ?"
    return {key: (first_row, rows) for key, first_row, rows in db.execute(query, (output,))}


def committed_spans(db: sqlite3.Connection, output: str) -> dict[bytes, Span]:
    """Return which rows files have in committed parts, by path. Kept rows of an unfinished part may run again."""
    end, spans = total_rows(db, output), read_spans(db, output)
    for key in [key for key, (first_row, rows) in spans.items() if first_row + rows > end]:
        first_row, _ = spans.pop(key)
        if first_row <= end:
            spans[key] = (first_row, end - first_row)
    return spans


def close_files(db: sqlite3.Connection, output: str, through: Iterable[str], first_row: int) -> None:
    """Note that files of an unfinished run are done, and that the next part begins with `first_row`."""
    spans = committed_spans(db, output)
    empty = [path for path in through if os.fsencode(path) not in spans]
    note_spans(db, output, ((path, first_row, 0) for path in empty))
    rows = [(output, os.fsencode(path)) for path in through]
    db.executemany("UPDATE inputs SET done = 1 WHERE output = ? AND path = ?", rows)
    db.execute("UPDATE outputs SET first_row = ? WHERE output = ?", (first_row, output))


def leave_to_others(db: sqlite3.Connection, output: str, files: FileStates, first_row: int) -> bool:
    """Let only these files be underway, so that none but the files of a run are done with it; return if others were.

    Another run has noted the others, and was ended. Those whose committed rows come before `first_row` are done. Those
    without any are not known any more: the next plan finds them as new ones. Raises OrtdeployError if one has others.
    """
    query = "SELECT COUNT(*) FROM inputs WHERE output = ? AND NOT done"
    if db.execute(query, (output,)).fetchone() == (len(files),):
        return False
    ours = {os.fsencode(cells[0]) for cells in files.cells()}
    underway = db.execute("SELECT path FROM inputs WHERE output = ? AND NOT done ORDER BY number", (output,))
    others, spans = [path for (path,) in underway if path not in ours], committed_spans(db, output)
    read = [path for path in others if spans.get(path, (0, 0))[1]]
    late = [os.fsdecode(path) for path in read if sum(spans[path]) > first_row]
    if late:
        raise OrtdeployError(
            f"another run has committed rows of {late[0]} since the plan was made, which does not read it; plan again"
        )
    if read:
        close_files(db, output, [os.fsdecode(path) for path in read], first_row)
    drop_files(db, output, [os.fsdecode(path) for path in others if path not in {*read}])
    return True


def drop_files(db: sqlite3.Connection, output: str, paths: Sequence[str]) -> None:
    """Drop files of which no row is committed: if they come back, they are new."""
    forget_files(db, output, paths, "inputs")


def forget_kept_rows(db: sqlite3.Connection, output: str) -> None:
    """Forget the kept rows of a part, and which files they are of."""
    db.execute("DELETE FROM begun WHERE output = ?", (output,))
    query = (
        "DELETE FROM spans WHERE output = :output AND first_row >= :total AND EXISTS "
        "(SELECT * FROM inputs WHERE inputs.output = :output AND inputs.path = spans.path AND NOT done)"
    )
    db.execute(query, {"output": output, "total": total_rows(db, output)})


def files_before(db: sqlite3.Connection, output: str, row: int) -> int:
    """Return how many files of an unfinished run there are up to the last one with rows before `row`."""
    query = (
        "SELECT COUNT(*) FROM inputs WHERE output = :output AND NOT done AND number <= (SELECT MAX(number) FROM inputs "
        "JOIN spans ON spans.output = inputs.output AND spans.path = inputs.path "
        "WHERE inputs.output = :output AND NOT done AND first_row < :row AND rows > 0)"
    )
    return int(db.execute(query, {"output": output, "row": row}).fetchone()[0])


def _seal(path: bytes, *cells: Any) -> str:
    """Return the seal over a row of `reruns`: a checksum, because there may be a hundred thousand rows."""
    return f"{zlib.crc32(repr(cells).encode(), zlib.crc32(path)):08x}"


def forget_files(db: sqlite3.Connection, output: str, paths: Iterable[str], *others: str) -> None:
    """Forget which rows files have, because they count as new files from now on; and what other tables have of them."""
    rows = [(output, os.fsencode(path)) for path in paths]
    for table in ("spans", "reruns", *others):
        db.executemany(f"DELETE FROM {table} WHERE output = ? AND path = ?", rows)  # noqa: S608  ours


def forget_those_taken_up(db: sqlite3.Connection, output: str, states: Iterable[FileState]) -> None:
    """Forget which rows files had that a run now reads as new files; files of an unfinished run keep theirs."""
    for table in ("spans", "reruns"):
        if db.execute(f"SELECT EXISTS (SELECT * FROM {table} WHERE output = ?)", (output,)).fetchone() == (1,):  # noqa: S608  ours
            query = (
                f"DELETE FROM {table} WHERE output = :output AND path = :path AND NOT EXISTS "  # noqa: S608  ours
                "(SELECT * FROM inputs WHERE output = :output AND path = :path AND NOT done)"
            )
            db.executemany(query, ({"output": output, "path": os.fsencode(state[0])} for state in states))


def note_empty_files(db: sqlite3.Connection, output: str) -> None:
    """Note which files of a finished run have no rows: those without a span, if all rows are in the spans of others."""
    query = (
        "SELECT first_row + (SELECT COALESCE(SUM(MIN(rows, spans.first_row + rows - outputs.first_row)), 0) FROM spans "
        "WHERE output = ? AND spans.first_row + rows > outputs.first_row) FROM outputs WHERE output = ?"
    )
    (known,) = db.execute(query, (output, output)).fetchone()
    if known == total_rows(db, output):
        query = (
            "SELECT path FROM inputs WHERE output = ? AND done = 0 AND NOT EXISTS "
            "(SELECT * FROM spans WHERE spans.output = ? AND spans.path = inputs.path)"
        )
        (first_row,) = db.execute("SELECT first_row FROM outputs WHERE output = ?", (output,)).fetchone()
        empty = [os.fsdecode(path) for (path,) in db.execute(query, (output, output)).fetchall()]
        note_spans(db, output, ((path, first_row, 0) for path in empty))


def read_reruns(db: sqlite3.Connection, output: str) -> tuple[Rerun, ...]:
    """Return the files whose rows run again, in the order of their rows. Raises ValueError, TypeError."""
    names = ", ".join(_RERUN)
    rows = db.execute(f"SELECT path, {names}, seal FROM reruns WHERE output = ?", (output,)).fetchall()  # noqa: S608  ours
    if not rows:
        return ()
    spans = read_spans(db, output)
    found = []
    for key, *cells in rows:
        if cells[-1] != _seal(key, *cells[:-1]) or key not in spans:
            raise ValueError("which rows run again is not what was written")
        values = typed(_RERUN, cells[:-1])
        through = values.pop("through")
        state = FileState(path=os.fsdecode(key), **values)
        found.append(Rerun(state=state, first_row=spans[key][0], rows=spans[key][1], through=through))
    return tuple(sorted(found, key=lambda one: one.first_row))


def begin_reruns(db: sqlite3.Connection, output: str, states: Iterable[FileState]) -> None:
    """Note that the rows of files run again from these states; rows that already ran again in that state are done."""
    spans, before = read_spans(db, output), {one.state: one for one in read_reruns(db, output)}
    for state in states:
        first_row, rows = spans[os.fsencode(state.path)]
        through = before[state].through if state in before else first_row
        if rows:
            _put_rerun(db, output, state, through)
        else:
            note_state(db, output, state)


def advance_reruns(db: sqlite3.Connection, output: str, start: int, through: int) -> None:
    """Note that parts hold the new results of all rows before `through`, for which files are as they were read."""
    for one in read_reruns(db, output):
        if start <= one.through < min(through, one.end):
            _put_rerun(db, output, one.state, min(through, one.end))
        if start <= one.through and one.end <= through:
            note_state(db, output, one.state)


def _put_rerun(db: sqlite3.Connection, output: str, state: FileState, through: int) -> None:
    key, cells = os.fsencode(state.path), (state.size, state.mtime_ns, through)
    db.execute("INSERT OR REPLACE INTO reruns VALUES (?, ?, ?, ?, ?, ?)", (output, key, *cells, _seal(key, *cells)))


def note_state(db: sqlite3.Connection, output: str, state: FileState) -> None:
    """Note that what is known of a file is known of this state, in which it is there; earlier repairs do not count."""
    where = (output, os.fsencode(state.path))
    query = "UPDATE inputs SET size = ?, mtime_ns = ?, done = MIN(done, 1) WHERE output = ? AND path = ?"
    db.execute(query, (state.size, state.mtime_ns, *where))
    seal_inputs(db, output)
    db.execute("DELETE FROM reruns WHERE output = ? AND path = ?", where)
    db.execute("DELETE FROM repairs WHERE output = ? AND path = ?", where)


def begin_leaving(db: sqlite3.Connection, output: str, paths: Iterable[str]) -> None:
    """Note that the rows of files are to leave their parts; the files count as new ones."""
    spans = committed_spans(db, output)
    for path in paths:
        first_row, rows = spans.get(os.fsencode(path), (0, 0))
        if rows:
            insert_sealed(db, "leaving", output, _SPAN, (first_row, rows))
    forget_files(db, output, paths)


def read_leaving(db: sqlite3.Connection, output: str) -> tuple[Span, ...]:
    """Return the rows that are to leave their parts, in order."""
    rows = sealed_rows(db, "leaving", output, _SPAN, "which rows leave their parts", "first_row")
    return tuple((row["first_row"], row["rows"]) for row in rows)


def end_leaving(db: sqlite3.Connection, output: str) -> None:
    """Note that all rows that were to leave their parts have left."""
    db.execute("DELETE FROM leaving WHERE output = ?", (output,))


def note_withdrawn(db: sqlite3.Connection, output: str, part: int, spans: Iterable[Span]) -> None:
    """Note which rows of a part no longer count, in place of what was noted."""
    db.execute("DELETE FROM withdrawn WHERE output = ? AND part = ?", (output, part))
    for span in spans:
        insert_sealed(db, "withdrawn", output, _WITHDRAWN, (part, *span))


def read_withdrawn(db: sqlite3.Connection, output: str) -> dict[int, list[Span]]:
    """Return which rows no longer count, by part."""
    found: dict[int, list[Span]] = {}
    for row in sealed_rows(db, "withdrawn", output, _WITHDRAWN, "which rows count no more", "first_row"):
        found.setdefault(row["part"], []).append((row["first_row"], row["rows"]))
    return found


def rows_in(spans: Iterable[Span], start: int, end: int) -> Iterator[int]:
    """Yield the spans' rows from `start` on and before `end`."""
    for first_row, rows in spans:
        yield from range(max(first_row, start), min(first_row + rows, end))


def as_spans(rows: Iterable[int]) -> tuple[Span, ...]:
    """Return row numbers, in any order, as the fewest spans, in order."""
    found: list[list[int]] = []
    for row in sorted(rows):
        if found and row == found[-1][0] + found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([row, 1])
    return tuple((first_row, count) for first_row, count in found)
