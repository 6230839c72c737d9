"""JSON lines: one object a line. Numbers and nested lists are read as the model input's element type."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.json_text import object_once
from ortdeploy.files.memory_budget import LINE_OF_VALUES
from ortdeploy.results.rows import HIDDEN
from ortdeploy.sources.compression import Lines, open_binary
from ortdeploy.sources.empty_cells import null_if_empty
from ortdeploy.sources.files import shown
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.row_index import START, Mark
from ortdeploy.sources.rows import NUL_BYTES, RowError
from ortdeploy.sources.settings import WINDOW
from ortdeploy.sources.text_rows import TextRows
from ortdeploy.tensors.carried import TEXT, type_of_values
from ortdeploy.tensors.conversion import exact_up_to
from ortdeploy.tensors.types import ROWS, TensorType
from ortdeploy.tensors.written_numbers import JsonNumber, rounded_wholes

SUFFIXES = (".jsonl", ".ndjson")
FIRST_ROWS = 64
PACKAGE = None
SETTINGS = (WINDOW,)

SAMPLED_ROWS, MOST_SAMPLED_FILES = 1024, 16
"""Rows that tell the types of carried columns, and files whose first rows these are."""

_EXACT = exact_up_to("float64")

_OF_EACH_ROW = ("path", "row")
"""Keys that every row has, whatever its file holds."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Take columns and shapes from the first lines that are not empty. A size in which their lists differ is open."""
    read = partial(read_rows, mark=START, folder=None, wanted=_any_columns(facts))
    lines = islice(chain.from_iterable(map(read, files)), FIRST_ROWS)
    first = next(lines, None)
    if first is None:
        return replace(facts, rows=0)
    rows = list(_readable(chain([first], lines)))
    if not rows:
        detail = f"{first.path}{first.place}: {_why_not(first.value)}."
        return replace(facts, problem=Problem(kind="unreadable", detail=detail))
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _type([row.get(name) for row in rows]) for name in names}
    return replace(facts, columns=columns, types=_types_to_carry(files, facts, columns.keys()))


def _any_columns(facts: InputFacts) -> Wanted:
    return Wanted(dtypes={}, memory_limit=facts.memory_limit)


def _types_to_carry(files: Sequence[str], facts: InputFacts, known: Collection[str]) -> dict[str, str]:
    """Return the types that hold the carried columns in the first rows of some files; text where all are null.

    Numbers of rows and paths are not read, unless the files have such columns of their own.
    """
    carried = [name for name in facts.carried if name in known or name not in _OF_EACH_ROW]
    if not carried:
        return {}
    places = range(0, len(files), -(-len(files) // MOST_SAMPLED_FILES))
    chosen = [files[place] for place in {*places, len(files) - 1}]
    empty, wanted = frozenset(facts.dialect.empty), _any_columns(facts)
    values: dict[str, list[Any]] = {name: [] for name in carried}
    for path in chosen:
        lines = islice(read_rows(path, START, folder=None, wanted=wanted), SAMPLED_ROWS // len(chosen))
        for row in _readable(lines):
            for name in row.keys() & values.keys():
                values[name].append(null_if_empty(row[name], empty))
    return {name: type_of_values(found) or TEXT for name, found in values.items() if found}


def _readable(lines: Iterable[RawRow]) -> Iterator[dict[str, Any]]:
    """Yield the objects of lines, without those that will fail as rows."""
    for raw in lines:
        with suppress(RowError):
            yield _parse(raw.value)


def _why_not(line: bytes) -> str:
    """Return why a line is no row."""
    try:
        _parse(line)
    except RowError as error:
        return str(error)
    raise AssertionError("the line is a row")


def _type(values: Sequence[Any]) -> TensorType:
    """Return the type of a column by the rank that most values have; sizes in which these differ are open.

    A value of another rank fails as a row, and a missing one does not count.
    """
    shapes = [_shape(value) for value in values if value is not None]
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes):
        return TensorType()
    ((rank, _),) = Counter(map(len, known)).most_common(1)
    sizes = [set(alike) for alike in zip(*(shape for shape in known if len(shape) == rank), strict=True)]
    return TensorType(None, (ROWS, *(one.pop() if len(one) == 1 else None for one in sizes)))


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the sizes of nested lists; a size is None if lists differ in it, because each row is checked later."""
    try:
        return tuple(np.shape(value))
    except ValueError:
        return None


_decode = json.JSONDecoder(object_pairs_hook=object_once).decode  # made once: json.loads makes one a line
_decode_as_written = json.JSONDecoder(object_pairs_hook=object_once, parse_float=JsonNumber).decode


def _parse(line: bytes, decode: Callable[[str], Any] = _decode) -> dict[str, Any]:
    if b"\0" in line:
        raise RowError(NUL_BYTES, "not-json")
    try:
        row = decode(line.decode(json.detect_encoding(line), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise RowError(f"the line is not JSON: {error}{_advice(line, error)}", "not-json") from error
    if isinstance(row, list):
        raise RowError(f"the line is a JSON array. {_ONE_A_LINE}, as jq -c '.[]' does", "not-json")
    if not isinstance(row, dict):
        raise RowError("the line is not a JSON object", "not-json")
    return row


_ONE_A_LINE = "Write each object on a line of its own"


def _advice(line: bytes, error: Exception) -> str:
    """Return what to do about a line that seems to be one of a document of several lines, or several documents."""
    if line.strip(b" \t\r\n\xef\xbb\xbf") in {b"{", b"["}:
        return f". A JSON document of several lines begins here. {_ONE_A_LINE}, as jq -c does"
    is_more = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
    return f". There is more than one JSON value in it. {_ONE_A_LINE}" if is_more else ""


def read_rows(path: str, mark: Mark, *, folder: str | None, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the lines of a file that are not empty, from a mark on."""
    name = shown(path, folder) if folder else path
    number, offset = mark.row, mark.offset
    with open_binary(path, name) as file:
        file.seek(offset)
        lines = Lines(name, LINE_OF_VALUES, wanted.memory_limit).read(file, mark.line)
        for before, line in enumerate(lines, mark.line):
            if line.strip():
                yield RawRow(name, f":{before + 1}", line, number, (before, offset))
                number += 1
            offset += len(line)


def _without_empty(row: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Return a row with null for the texts that the manifest takes for an empty cell."""
    empty = frozenset(wanted.dialect.empty)
    if not empty:
        return row
    used = {name: row[name] for name in (*wanted.dtypes, *wanted.keys) if name in row}
    return row | {name: null_if_empty(value, empty) for name, value in used.items()}


def _decode_row(raw: RawRow, wanted: Wanted) -> dict[str, Any]:
    row = _without_empty(_parse(raw.value), wanted)
    for name in (*wanted.dtypes, *wanted.keys):
        if name in row or name in {"path", "row", *HIDDEN}:
            continue
        if name in wanted.missing:
            row[name] = None
        else:
            raise RowError(f'the line has no "{name}"', "missing-value", known=dict(row))
    if any(_may_be_rounded(row.get(name)) for name in wanted.keys):
        _refuse_rounded(row, wanted.keys, raw)
    return row


def _may_be_rounded(value: Any) -> bool:
    """Return whether a value has floating numbers that may stand for other whole ones, or for more than they hold."""
    if isinstance(value, float):
        return abs(value) >= _EXACT
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and any(map(_may_be_rounded, value))


def _refuse_rounded(row: dict[str, Any], keys: Sequence[str], raw: RawRow) -> None:
    """Raise RowError for a key with a number that became another whole one when it was read, or infinite."""
    written = _parse(raw.value, _decode_as_written)
    for name in keys:
        for number in _written_in(written.get(name)):
            if math.isinf(float(number)):
                why = f'"{name}" is {number}, more than any floating number holds'
            elif any(True for _ in rounded_wholes(np.array([number], dtype=object), "float64")):
                why = f'"{name}" is {number}, which a floating number rounds; write it without a point, or in quotes'
            else:
                continue
            raise RowError(why, "not-a-number", known=row | {name: written[name]})


def _written_in(value: Any) -> Iterator[JsonNumber]:
    """Yield the numbers with a point or an exponent in a value."""
    if isinstance(value, JsonNumber):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _written_in(one)


def _decode_exactly(raw: RawRow, wanted: Wanted) -> dict[str, Any]:
    """Return what a row is fed, with its numbers as they are written."""
    row = _without_empty(_parse(raw.value, _decode_as_written), wanted)
    return {name: row.get(name) for name in (*wanted.dtypes, *wanted.missing) if name in row or name in wanted.missing}


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TextRows]:
    """Open JSON-lines files as one table."""
    decode, as_written = partial(_decode_row, wanted=wanted), partial(_decode_exactly, wanted=wanted)
    yield TextRows(partial(read_rows, folder=folder, wanted=wanted), decode, files, wanted, as_written)
