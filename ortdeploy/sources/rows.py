"""Turns rows that are read one by one into blocks; shared by the formats whose files hold no arrays."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.contents import ContentColumns
from ortdeploy.files.decoding import is_a_bug, reason_of
from ortdeploy.records import ordered_record
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, HIDDEN, Block, FailedRow
from ortdeploy.retries import try_again
from ortdeploy.sources.files import shown
from ortdeploy.sources.protocol import Wanted, pieces_of
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.json_values import json_value
from ortdeploy.tensors.types import FLOATING, INTEGERS


class RowError(Exception):
    """A row cannot be read; the message says why. Its code and its known keys go into _failed.jsonl."""

    def __init__(
        self,
        message: str,
        code: str = "unreadable-row",
        *,
        transient: bool = False,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the message and the code. `transient`: another try may succeed. `known`: values by column, for keys."""
        super().__init__(message)
        self.code = code
        self.transient = transient
        self.known = known or {}


class RawRow(NamedTuple):
    """A row before it is decoded: its file, its place in it, and the value for the format's `decode`.

    `number` is its number in the file. For a text file, `begin` says how many lines and bytes are in front of it.
    """

    path: str
    place: str
    value: Any
    number: int = 0
    begin: tuple[int, int] = (0, 0)

    @property
    def source(self) -> str:
        """The file with the row's place in it, for messages."""
        return f"{self.path}{self.place}"


Decode = Callable[[RawRow], Mapping[str, Any]]
"""Turns a raw row into values by column name: arrays, numbers, text, nested lists. Raises RowError."""


@ordered_record
class FilePerRow:
    """A source of files that are one row each; `decode` gets a file's path as the raw row's value.

    To `contents`, `decode` adds what files held that it has read whole.
    """

    files: Sequence[str]
    folder: str
    wanted: Wanted
    decode: Decode
    contents: ContentColumns | None = None

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield blocks; files before the first row are not opened."""
        places = range(start - self.wanted.first_row, len(self.files))
        files = (self.files[place] for place in places) if places.start else iter(self.files)
        raw_rows = (RawRow(shown(path, self.folder), "", path) for path in files)
        for block in block_rows(raw_rows, self.decode, self.wanted, start, sizes):
            block.contents = None if self.contents is None else self.contents.taken()
            yield block


def block_rows(
    raw_rows: Iterator[RawRow], decode: Decode, wanted: Wanted, start: int, sizes: Iterable[int]
) -> Iterator[Block]:
    """Group rows into blocks; rows that cannot be decoded or converted become failed rows of their block."""
    if wanted.only is not None:
        for first, count in pieces_of(wanted.only, sizes):
            pending = list(islice(raw_rows, first - start, first - start + count))
            yield _decode_block(pending, decode, wanted, first)
            start = first + count
        return
    for size in sizes:
        pending = list(islice(raw_rows, size))
        if not pending:
            return
        yield _decode_block(pending, decode, wanted, start)
        start += len(pending)


def _decode_block(pending: list[RawRow], decode: Decode, wanted: Wanted, start: int) -> Block:
    rows: list[int] = []
    table: list[Mapping[str, Any]] = []
    failed: list[FailedRow] = []

    def refuse(number: int, error: RowError, attempts: int = 1) -> None:
        failed.append(
            FailedRow(
                row=number,
                source=pending[number - start].source,
                stage="read",
                code=error.code,
                message=str(error),
                key=_known_keys({**error.known, "path": pending[number - start].path, "row": number}, wanted),
                attempts=attempts,
                path=pending[number - start].path,
                file_row=pending[number - start].number,
            )
        )

    for number, raw in enumerate(pending, start):
        decoded, attempts = _decode_row(raw, decode, wanted)
        if isinstance(decoded, RowError):
            refuse(number, decoded, attempts)
        else:
            table.append({"path": raw.path, "row": number, **decoded, FILE_PATH: raw.path, FILE_ROW: raw.number})
            rows.append(number)
    try:
        columns = {name: read_column([row[name] for row in table], dtype) for name, dtype in wanted.dtypes.items()}
    except (RowError, ValueError, TypeError, OverflowError):
        rows, table, columns = _convert_alone(rows, table, wanted, refuse)
    failed.sort(key=lambda row: row.row)
    for key in wanted.keys:
        if key not in columns:
            columns[key] = [row[key] for row in table]
    places = [pending[number - start].source for number in rows]
    return Block(start=start, count=len(pending), rows=rows, columns=columns, failed=failed, places=places)


def _known_keys(cells: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Return the keys of a failed row that could be read, as values that JSON has."""
    return {name: json_value(cells[name]) for name in wanted.keys if name in cells and name not in HIDDEN}


def _decode_row(raw: RawRow, decode: Decode, wanted: Wanted) -> tuple[Mapping[str, Any] | RowError, int]:
    """Return a row's values, or the reason why there are none, and how often it was tried."""
    found = _try_row(raw, decode, wanted)
    if not isinstance(found, RowError):
        return found, 1
    return try_again(found, partial(_try_row, raw, decode, wanted), _why_it_may_pass, f"reading {raw.source}")


def _why_it_may_pass(found: Mapping[str, Any] | RowError) -> str | None:
    return str(found) if isinstance(found, RowError) and found.transient else None


def _try_row(raw: RawRow, decode: Decode, wanted: Wanted) -> Mapping[str, Any] | RowError:
    row: Mapping[str, Any] = {}
    try:
        row = decode(raw)
        return _without_gaps(row, wanted) if wanted.missing else row
    except RowError as error:
        error.known = error.known or row
        return error
    except Exception as error:
        if is_a_bug(error) or isinstance(error, OrtdeployError):
            raise
        return RowError(f"the row cannot be read: {reason_of(error)}")


def _without_gaps(row: Mapping[str, Any], wanted: Wanted) -> Mapping[str, Any]:
    """Return a row with fillers for its empty values. Raises RowError if there is no filler."""
    return {**row, **{name: _filled(row[name], filler, name) for name, filler in wanted.missing.items()}}


def _filled(value: Any, filler: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_filled(item, filler, name) for item in value]
    if value is not None and value != "":
        return value
    if filler is None:
        raise RowError(f'"{name}" is empty', "missing-value")
    return filler


def _convert_alone(
    rows: list[int], table: list[Mapping[str, Any]], wanted: Wanted, refuse: Callable[[int, RowError], None]
) -> tuple[list[int], list[Mapping[str, Any]], dict[str, Column]]:
    """Convert row by row, and leave out rows that cannot be converted."""
    good: list[tuple[int, Mapping[str, Any], dict[str, Array]]] = []
    for number, row in zip(rows, table, strict=True):
        try:
            good.append((number, row, _convert_row(row, wanted)))
        except RowError as error:
            error.known = row
            refuse(number, error)
    columns = {name: stack([arrays[name] for _, _, arrays in good]) for name in wanted.dtypes}
    return [number for number, _, _ in good], [row for _, row, _ in good], columns


def _convert_row(row: Mapping[str, Any], wanted: Wanted) -> dict[str, Array]:
    return {
        name: row[name] if isinstance(row[name], np.ndarray) else read_array(row[name], dtype or "float32")
        for name, dtype in wanted.dtypes.items()
    }


def read_column(values: list[Any], dtype: str | None) -> Column:
    """Return arrays, texts, numbers or nested lists as a column [rows, …]; after any exception, try rows alone."""
    if not values or isinstance(values[0], np.ndarray):
        return stack(values)
    wanted = dtype or "float32"
    if wanted in FLOATING:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype=wanted)
        if np.isfinite(array).all():  # numpy turns null into NaN and 1e39 into infinity; neither may pass for a number
            return array
    elif wanted in INTEGERS:
        array = np.array(values)
        if array.dtype.kind in "iu" and _fits(array, wanted):
            return array.astype(wanted)
    return stack([read_array(value, wanted) for value in values])


def _fits(array: Array, dtype: str) -> bool:
    limits = np.iinfo(dtype)
    return not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)


def stack(column: list[Any]) -> Column:
    """Stack rows […] of equal shape and type into one array [rows, …]; keep the list if they differ."""
    if not column or not isinstance(column[0], np.ndarray):
        return column
    first: Array = column[0]
    if all(value.shape == first.shape and value.dtype == first.dtype for value in column):
        return np.stack(column)
    return column


def read_array(value: Any, dtype: str) -> Array:
    """Read the value of a row, a number, a text or nested lists of them, as an array […]. Raises RowError."""
    if dtype == "string":
        return _text_array(value)
    try:
        array = np.array(value, dtype=object)
        if any(item is None or item == "" for item in array.flat):
            raise RowError("a value is empty where a number is wanted", "empty-value")
        return _numbers(array, np.dtype(dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise RowError(f"{_short(value)} is not {dtype}: {error}", "not-a-number") from error


def _numbers(array: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        whole = np.array([_whole(item) for item in array.flat], dtype=object).reshape(array.shape)
        return whole.astype(dtype)
    if dtype.kind == "b":
        return np.array([_boolean(item) for item in array.flat], dtype=bool).reshape(array.shape)
    with np.errstate(over="ignore"):
        numbers = array.astype(dtype)
    for item in array[np.isinf(numbers)].flat:
        if math.isfinite(float(item)):
            raise ValueError(f"{item} is more than {dtype} holds")
    return numbers


def _whole(item: Any) -> int:
    number = int(item) if isinstance(item, str | int) else float(item)
    if number != int(number):
        raise ValueError(f"{item} is not a whole number")
    return int(number)


def _boolean(item: Any) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    key = str(item).lower()
    if key not in words:
        raise ValueError("write true, false, 1 or 0")
    return words[key]


def _text_array(value: Any) -> Array:
    array = np.array(value, dtype=object)
    if any(not isinstance(item, str) for item in array.flat):
        raise RowError(f"{_short(value)} is not text", "not-text")
    return array


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"  # noqa: PLR2004  one line of a log
