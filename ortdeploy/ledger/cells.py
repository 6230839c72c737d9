"""The columns of the ledger's tables, and the seals over their rows.

A seal is a digest over the other cells of a row. With it, reading notices a cell that is not what was written. If there
may be a million rows, it is a checksum: of each row of `spans`; of `first_row` and all input files of an output
(`inputs_seal`). A seal guards against damage, not against an attacker. `ledger.check` checks which values cells may
have at all.
"""

import hashlib
import json
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain, islice
from typing import Any

from ortdeploy.files.compact_list import in_blocks
from ortdeploy.files.json_text import read_json
from ortdeploy.ledger.records import Part, Revision

OUTPUT_COLUMNS: Mapping[str, Any] = {
    "output": str, "deployment": str, "job": str, "identity": str, "status": str, "run": str, "started": str,
    "ended": str | None, "reason": str | None, "first_row": int, "batch_size": int | None, "statistics": str,
    "part_digits": int, "revision": int,
}  # fmt: skip
PART_COLUMNS: Mapping[str, Any] = {
    "number": int, "start": int, "rows": int, "committed": int, "failed": int, "skipped": int, "file": str | None,
    "bytes": int, "skipped_rows": str, "provenance": str | None, "sha256": str | None, "mtime_ns": int | None,
    "deployment": str | None, "revision": int,
}  # fmt: skip
BEGUN_COLUMNS: Mapping[str, Any] = {**PART_COLUMNS, "state": str | None, "name": str | None}
REVISION_COLUMNS: Mapping[str, Any] = {
    "part": int, "revision": int, "file": str, "bytes": int, "rows": str, "sha256": str | None, "mtime_ns": int | None,
    "deployment": str | None,
}  # fmt: skip
DEPLOYMENT_COLUMNS: Mapping[str, Any] = {"name": str, "profile": str | None, "identity": str, "layout": str}

_SEAL = 32
"""Characters of a seal."""
_OF_A_STATEMENT = 128
"""Rows that one statement writes; their cells are fewer than the 999 values that old SQLite takes."""
_IS_SEAL = re.compile(r"[0-9]+:[0-9]+:[0-9]+")
_AT_ONCE = 10_000
"""Input files whose text is held at once: the text of a million would take more than the rest of the process."""


def typed(columns: Mapping[str, Any], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row's cells by column. Raises TypeError if a cell has not the type of its column."""
    values = dict(zip(columns, row, strict=True))
    for name, value in values.items():
        if not isinstance(value, columns[name]):
            raise TypeError(f"{name} is {value!r}")
    return values


def seal_of(*cells: Any) -> str:
    """Return a digest over cells; it differs if one of them is not what was written."""
    return hashlib.sha256(_text_of(cells).encode()).hexdigest()[:_SEAL]


def _text_of(cells: Any) -> str:
    return json.dumps(cells, separators=(",", ":"))


def unsealed(cells: Sequence[Any], what: str) -> Sequence[Any]:
    """Return a row's cells without the last one, its seal. Raises ValueError if the seal does not fit."""
    if seal_of(*cells[:-1]) != cells[-1]:
        raise ValueError(f"{what} is not what was written")
    return cells[:-1]


def row_numbers(text: str) -> tuple[int, ...]:
    """Return the row numbers of a JSON list. Raises ValueError for any other text."""
    found = read_json(text)
    if not isinstance(found, list) or any(type(row) is not int for row in found):
        raise ValueError(f"{text[:60]!r} does not name rows")
    return tuple(found)


def check_time(text: str | None) -> None:
    """Raise ValueError if a text is not a time in ISO 8601."""
    if text is not None:
        datetime.fromisoformat(text)


def part_cells(part: Part) -> tuple[Any, ...]:
    """Return a part as the cells of its row, in the order of the columns."""
    plain = {name: getattr(part, name) for name in PART_COLUMNS}
    return tuple({**plain, "skipped_rows": json.dumps(part.skipped_rows)}.values())


def part_of(values: Mapping[str, Any], **more: Any) -> Part:
    """Return a part of typed cells, and of what other tables say of it. Raises ValueError."""
    return Part(**{**values, "skipped_rows": row_numbers(values["skipped_rows"]), **more})


def revision_cells(part: int, revision: Revision) -> tuple[Any, ...]:
    """Return a revision of a part as the cells of its row, in the order of the columns."""
    plain = {name: getattr(revision, name) for name in REVISION_COLUMNS if name != "part"}
    return tuple({"part": part, **plain, "rows": json.dumps(revision.rows)}.values())


def revision_of(values: Mapping[str, Any]) -> Revision:
    """Return a later file of a part, of typed cells. Raises ValueError."""
    plain = {name: value for name, value in values.items() if name != "part"}
    return Revision(**{**plain, "rows": row_numbers(values["rows"])})


def insert_sealed(
    db: sqlite3.Connection, table: str, output: str, columns: Mapping[str, Any], cells: tuple[Any, ...]
) -> None:
    """Write a row with its seal; it replaces a row of the same key."""
    marks = ", ".join("?" * (len(columns) + 2))
    names = ", ".join(columns)
    query = f"INSERT OR REPLACE INTO {table} (output, {names}, seal) VALUES ({marks})"  # noqa: S608  ours
    db.execute(query, (output, *cells, seal_of(*cells)))


def sealed_rows(
    db: sqlite3.Connection, table: str, output: str, columns: Mapping[str, Any], what: str, order: str = "output"
) -> Iterator[dict[str, Any]]:
    """Yield the rows of an output that `insert_sealed` has written, by column.

    Raises ValueError, TypeError for a row that is not what was written: `what` says which, {} is its first cell.
    """
    query = f"SELECT {', '.join(columns)}, seal FROM {table} WHERE output = ? ORDER BY {order}"  # noqa: S608  ours
    for row in db.execute(query, (output,)):
        yield typed(columns, unsealed(row, what.format(row[0])))


def insert_many(
    db: sqlite3.Connection, statement: str, output: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Carry out an INSERT that takes its rows from the table `new`, with these columns, and the output as its value.

    Many rows go into each statement, because a statement for each row takes two to four times as long.
    """
    one = f"({', '.join('?' * len(columns))})"
    for some in in_blocks(rows, _OF_A_STATEMENT):
        new = f"WITH new ({', '.join(columns)}) AS (VALUES {', '.join([one] * len(some))})"
        db.execute(f"{new} {statement}", (*chain.from_iterable(some), output))


def add_functions(db: sqlite3.Connection) -> None:
    """Add `crc32` to a connection's SQL functions, for checksums of paths."""
    db.create_function("crc32", 1, zlib.crc32, deterministic=True)


_PRIME = 4294967291
_OF_PATH = "(crc32(CAST(path AS BLOB)) % 1073741789 + 1)"
_OF_INPUT = (
    f"{_OF_PATH} * ((number * 7919 + size % {_PRIME} * 104729 + size / {_PRIME} * 611953 + mtime_ns % {_PRIME} * 31 + "
    f"mtime_ns / {_PRIME} * 15485863 + done + 1) % {_PRIME}) % {_PRIME}"
)
FEW_INPUTS = 500
"""The most input files of which the terms are exchanged in a seal; for more, all are added up again."""
_IS_TYPED = (
    "typeof(path) = 'blob' AND typeof(number) = 'integer' AND typeof(size) = 'integer' AND "
    "typeof(mtime_ns) = 'integer' AND typeof(done) = 'integer'"
)


def seal_of_span(first_row: str, rows: str) -> str:
    """Return the SQL expression of the seal over a row of `spans`; the arguments are SQL expressions too."""
    cells = f"({first_row} % {_PRIME} * 7919 + {rows} % {_PRIME} * 31 + 1) % {_PRIME}"
    return f"((crc32(CAST(path AS BLOB)) % 1073741789 + 1) * ({cells}) % {_PRIME})"


def seal_of_inputs(db: sqlite3.Connection, output: str) -> str:
    """Return the seal over the first row and the input files of an output.

    It is a sum, so SQLite computes it in one pass, in any order. Each file's term is the checksum of its cells times
    that of its path, so the sum changes if two files exchange their cells.
    """
    count, total = _terms(db, "inputs.output = ?", (output,))
    return f"{_first_row(db, output)}:{count}:{total}"


def _first_row(db: sqlite3.Connection, output: str) -> Any:
    """Return the cell as it is: a seal is over what stands there, whatever it is."""
    (first_row,) = db.execute("SELECT first_row FROM outputs WHERE output = ?", (output,)).fetchone()
    return first_row


def _terms(db: sqlite3.Connection, which: str, values: Sequence[Any]) -> tuple[int, int]:
    """Return how many input files there are, and the sum of their terms."""
    add_functions(db)
    query = f"SELECT COUNT(*) FILTER (WHERE {_IS_TYPED}), SUM({_OF_INPUT}) FROM inputs WHERE {which}"  # noqa: S608  ours
    count, total = db.execute(query, values).fetchone()
    return count, total or 0


def seal_inputs(db: sqlite3.Connection, output: str) -> None:
    """Seal the first row and the input files of an output as they are now."""
    db.execute("UPDATE outputs SET inputs_seal = ? WHERE output = ?", (seal_of_inputs(db, output), output))


@contextmanager
def resealed_inputs(db: sqlite3.Connection, output: str, paths: Iterable[bytes]) -> Iterator[None]:
    """Seal the input files of an output after a block that changes no others than these, and perhaps the first row.

    The terms of a few files are exchanged in the seal, for adding up all takes a tenth of a second of a hundred
    thousand. If the list was damaged before, the new seal does not fit it either.
    """
    few = [*islice(paths, FEW_INPUTS + 1)]
    seal = None if len(few) > FEW_INPUTS else _seal_of(db, output)
    if seal is None:
        yield
        seal_inputs(db, output)
        return
    which, values = f"output = ? AND path IN ({', '.join('?' * len(few))})", (output, *few)
    count_before, before = _terms(db, which, values)
    yield
    count_after, after = _terms(db, which, values)
    _, count, total = map(int, seal.split(":"))
    new = f"{_first_row(db, output)}:{count + count_after - count_before}:{total + after - before}"
    db.execute("UPDATE outputs SET inputs_seal = ? WHERE output = ?", (new, output))


def _seal_of(db: sqlite3.Connection, output: str) -> str | None:
    """Return the seal over the input files of an output; None if it has none of the present form."""
    row = db.execute("SELECT inputs_seal FROM outputs WHERE output = ?", (output,)).fetchone()
    return row[0] if row is not None and row[0] is not None and _IS_SEAL.fullmatch(row[0]) else None


def old_seal_of_inputs(db: sqlite3.Connection, output: str) -> str:
    """Return the seal that ledgers before version 5 have over the same cells."""
    (first_row,) = db.execute("SELECT first_row FROM outputs WHERE output = ?", (output,)).fetchone()
    query = "SELECT number, lower(hex(path)), size, mtime_ns, done FROM inputs WHERE output = ? ORDER BY number, path"
    digest, between = hashlib.sha256(f"[{_text_of(first_row)},[".encode()), ""
    files = db.execute(query, (output,))
    while some := files.fetchmany(_AT_ONCE):
        digest.update(f"{between}{_text_of(some)[1:-1]}".encode())
        between = ","
    digest.update(b"]]")
    return digest.hexdigest()[:_SEAL]
