"""Rewrites in the ledger: parts that are written again.

A part that is written again may need several files: its own one without the rows that leave it, and another one with
the new rows if another deployment made the part. So the ledger notes first what all of it will be:

1. the files are written beside the part under hidden names and synced;
2. the ledger notes the rewrite: which file takes which place, which one goes, and what the part is then;
3. the files are renamed, the folder is synced, they are sent to a store, and those that go are deleted;
4. the ledger replaces what it noted of the part, of its failed rows, and of its rows that no longer count.

The next command that finds a rewrite finishes it, or undoes it if a file of it is gone, see `running.recovery`.
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from ortdeploy.files.atomic import TEMPORARY
from ortdeploy.files.names import DUE, is_there_now
from ortdeploy.ledger.cells import (
    PART_COLUMNS,
    REVISION_COLUMNS,
    insert_sealed,
    part_cells,
    part_of,
    revision_cells,
    revision_of,
    sealed_rows,
    typed,
)
from ortdeploy.ledger.changes import advance_reruns, note_withdrawn
from ortdeploy.ledger.records import NewFile, Part, Rewrite, Span

_COLUMNS = {"part": int, "entry": str}
_HIDDEN = re.compile(rf"\.part-.*\.(merged|replaced|begun)|\..*{re.escape(TEMPORARY)}")


def hidden_files(folder: Path) -> Iterator[str]:
    """Yield the names of files that wait for their names, or that a killed command has left. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries if _HIDDEN.fullmatch(entry.name))
    except FileNotFoundError:
        return


def is_left_over(folder: Path) -> bool:
    """Return whether a killed command left hidden files, or a report that is older than the rows. Raises OSError."""
    return any(hidden_files(folder)) or is_there_now(folder / DUE)


def begin_rewrite(db: sqlite3.Connection, output: str, one: Rewrite, before: Part) -> None:
    """Note a rewrite, and that the revisions in the names of its files are taken; `before` is the part as it is."""
    entry = {
        "part": part_cells(one.part),
        "revisions": [revision_cells(one.part.number, later) for later in one.part.revisions],
        "withdrawn": one.part.withdrawn,
        "files": [to_builtins(file) for file in one.files],
        "removed": one.removed,
        "spans": one.spans,
        "letters": one.letters,
        "through": one.through,
        "absorbed": one.absorbed,
        "may_be_gone": one.may_be_gone,
    }
    insert_sealed(db, "rewrites", output, _COLUMNS, (one.part.number, json.dumps(entry)))
    if one.part.revision != before.revision:
        cells = part_cells(replace(before, revision=one.part.revision))
        insert_sealed(db, "parts", output, PART_COLUMNS, cells)


def read_rewrites(db: sqlite3.Connection, output: str) -> tuple[Rewrite, ...]:
    """Return the rewrites that were begun but not ended. Raises ValueError, TypeError, KeyError."""
    rows = sealed_rows(db, "rewrites", output, _COLUMNS, "what is to become of part {}", "part")
    return tuple(_rewrite(json.loads(row["entry"])) for row in rows)


def _rewrite(entry: dict[str, Any]) -> Rewrite:
    part = part_of(
        typed(PART_COLUMNS, entry["part"]),
        revisions=tuple(revision_of(typed(REVISION_COLUMNS, cells)) for cells in entry["revisions"]),
        withdrawn=_spans(entry["withdrawn"]),
    )
    from ortdeploy.ledger.letters import failed_before  # noqa: PLC0415  only where a killed run has left some

    for letter in entry["letters"]:
        failed_before(json.loads(letter)["row"], letter)
    return Rewrite(
        part=part,
        files=tuple(NewFile(**file) for file in entry["files"]),
        removed=tuple(entry["removed"]),
        spans=_spans(entry["spans"]),
        letters=tuple(entry["letters"]),
        through=entry["through"],
        absorbed=tuple(entry["absorbed"]),
        may_be_gone=entry["may_be_gone"] is True,
    )


def _spans(spans: Iterable[Sequence[int]]) -> tuple[Span, ...]:
    return tuple((int(first_row), int(rows)) for first_row, rows in spans)


def end_rewrite(db: sqlite3.Connection, output: str, one: Rewrite) -> None:
    """Replace what was noted of a part, of its failed rows, and of its rows that no longer count."""
    part = one.part
    insert_sealed(db, "parts", output, PART_COLUMNS, part_cells(part))
    db.execute("DELETE FROM revisions WHERE output = ? AND part = ?", (output, part.number))
    for later in part.revisions:
        insert_sealed(db, "revisions", output, REVISION_COLUMNS, revision_cells(part.number, later))
    for first_row, rows in one.spans:
        query = "DELETE FROM failures WHERE output = ? AND row >= ? AND row < ?"
        db.execute(query, (output, first_row, first_row + rows))
    letters = [(output, json.loads(letter)["row"], part.number, letter) for letter in one.letters]
    db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", letters)
    for number in one.absorbed:
        _absorb(db, output, number, part.number)
    note_withdrawn(db, output, part.number, part.withdrawn)
    if one.through is not None:
        advance_reruns(db, output, part.start, one.through)
    forget_rewrite(db, output, part.number)


def _absorb(db: sqlite3.Connection, output: str, number: int, by: int) -> None:
    """Give the failed rows of a part to another part, and delete the part."""
    db.execute("UPDATE failures SET part = ? WHERE output = ? AND part = ?", (by, output, number))
    for table, column in (("parts", "number"), ("revisions", "part"), ("withdrawn", "part")):
        db.execute(f"DELETE FROM {table} WHERE output = ? AND {column} = ?", (output, number))  # noqa: S608  ours


def forget_rewrite(db: sqlite3.Connection, output: str, part: int) -> None:
    """Drop a rewrite: the part stays as it was."""
    db.execute("DELETE FROM rewrites WHERE output = ? AND part = ?", (output, part))
