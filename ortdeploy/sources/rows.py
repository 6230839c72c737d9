"""Turns rows that are read one by one into blocks; shared by the formats whose files hold no arrays."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.decoding import is_a_bug, reason_of
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, HIDDEN, Block, FailedRow
from ortdeploy.retries import may_pass, try_again
from ortdeploy.sources.protocol import Wanted, pieces_of
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.tensors.columns import Array, Column, pick
from ortdeploy.tensors.conversion import convert, exact_up_to
from ortdeploy.tensors.json_values import json_value
from ortdeploy.tensors.types import FLOATING, INTEGERS, USUAL
from ortdeploy.tensors.written_numbers import JsonNumber, is_plain, read_numbers, rounded_wholes

TOO_LARGE = "too-large"
"""The code of a row for which there is too little memory."""

NUL_BYTES = "the line has NUL bytes, as UTF-16 has, or a file that was cut off when power failed"
"""Why a line of a text file is none."""

_READ = "\0read"
"""Where a row with fillers has those of its keys as they were read."""


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


Decode = Callable[[RawRow], Mapping[str, Any]]
"""Turns a raw row into values by column name: arrays, numbers, text, nested lists. Raises RowError."""


Found = tuple[Mapping[str, Any] | RowError, int]
"""A row's values, or the reason why there are none, and how often it was tried."""

DecodeAll = Callable[[Iterator[RawRow]], Generator[tuple[RawRow, Found]]]
"""Decodes rows, in their order."""


def one_by_one(raw_rows: Iterator[RawRow], decode: Decode, wanted: Wanted) -> Generator[tuple[RawRow, Found]]:
    """Decode rows when they are asked for."""
    return ((raw, decode_row(raw, decode, wanted)) for raw in raw_rows)


def block_rows(
    raw_rows: Iterator[RawRow],
    decode: DecodeAll,
    wanted: Wanted,
    start: int,
    sizes: Iterable[int],
    as_written: Decode | None = None,
) -> Iterator[Block]:
    """Group rows into blocks; rows that cannot be decoded or converted become failed rows of their block.

    `as_written` decodes a row so that no number is rounded, if `decode` does not; it is asked where that may matter.
    """
    if wanted.only is not None:
        with closing(decode(_some_of(raw_rows, start, wanted.only))) as decoded:
            for first, count in pieces_of(wanted.only, sizes):
                yield _block_of(list(islice(decoded, count)), wanted, first, as_written)
        return
    with closing(decode(raw_rows)) as decoded:
        for size in sizes:
            rows = list(islice(decoded, size))
            if not rows:
                return
            count = len(rows)
            yield _block_of(rows, wanted, start, as_written)
            start += count


def _some_of(raw_rows: Iterator[RawRow], start: int, only: Sequence[int]) -> Iterator[RawRow]:
    """Return those rows that have some numbers; the first one of all has the number `start`."""
    if isinstance(only, range):  # the rows of a part, which may be a million lines
        return islice(raw_rows, only.start - start, only.stop - start)
    gaps = (row - before - 1 for before, row in pairwise((start - 1, *only)))
    return chain.from_iterable(islice(raw_rows, gap, gap + 1) for gap in gaps)


def _block_of(decoded: list[tuple[RawRow, Found]], wanted: Wanted, start: int, as_written: Decode | None) -> Block:
    """Return a block of decoded rows, of which none is left in the list: they may be large."""
    pending = [raw for raw, _ in decoded]
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
                key=_known_keys({"path": pending[number - start].path, "row": number, **error.known}, wanted),
                attempts=attempts,
                path=pending[number - start].path,
                file_row=pending[number - start].number,
            )
        )

    for number, (raw, (found, attempts)) in enumerate(decoded, start):
        if isinstance(found, RowError):
            refuse(number, found, attempts)
        else:
            table.append({"path": raw.path, "row": number, **found, FILE_PATH: raw.path, FILE_ROW: raw.number})
            rows.append(number)
    decoded.clear()
    read = {name: _plain_column([row[name] for row in table], dtype) for name, dtype in wanted.dtypes.items()}
    columns = {name: column for name, column in read.items() if column is not None}
    odd = {name: wanted.dtypes[name] for name in read if name not in columns}
    if odd:
        exact = _as_written([pending[number - start] for number in rows], table, as_written, wanted)
        kept, alone = _convert_alone(rows, table, exact, odd, refuse)
        columns = {name: pick(columns[name], kept) if name in columns else alone[name] for name in read}
        rows, table = [rows[place] for place in kept], [table[place] for place in kept]
    failed.sort(key=lambda row: row.row)
    carried: dict[str, Column] = {}
    for key in wanted.keys:
        values = [_as_read(row)[key] for row in table]
        if key not in columns:
            columns[key] = values
        elif values and not isinstance(values[0], np.ndarray):  # an array is fed as it was read
            carried[key] = values
    places = [pending[number - start].source for number in rows]
    return Block(
        start=start, count=len(pending), rows=rows, columns=columns, failed=failed, places=places, carried=carried
    )


def _known_keys(cells: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Return the keys of a failed row that could be read, as values that JSON has."""
    return {name: json_value(cells[name]) for name in wanted.keys if name in cells and name not in HIDDEN}


def decode_row(raw: RawRow, decode: Decode, wanted: Wanted) -> Found:
    """Return a row's values, or the reason why there are none, and how often it was tried."""
    found = try_row(raw, decode, wanted)
    if not isinstance(found, RowError):
        return found, 1
    return try_again(found, partial(try_row, raw, decode, wanted), _why_it_may_pass, f"reading {raw.source}")


def _why_it_may_pass(found: Mapping[str, Any] | RowError) -> str | None:
    return str(found) if isinstance(found, RowError) and found.transient else None


def as_row_error(error: Exception, undecodable: Callable[[Exception], RowError] | None = None) -> RowError:
    """Return what an exception from reading the file of a row says of it, and re-raise one that is a bug.

    `undecodable` says what is wrong with the content.
    """
    if isinstance(error, OrtdeployError):
        return RowError(str(error), TOO_LARGE)
    if isinstance(error, FileNotFoundError):
        return RowError("the file is gone", "vanished-file")
    if isinstance(error, OSError) and error.errno is not None:
        return RowError(f"the file cannot be read: {error.strerror}", "unreadable-file", transient=may_pass(error))
    if is_a_bug(error):
        raise error
    return undecodable(error) if undecodable else RowError(f"the row cannot be read: {reason_of(error)}")


def try_row(raw: RawRow, decode: Decode, wanted: Wanted) -> Mapping[str, Any] | RowError:
    """Return a row's values, or the reason why there are none this time."""
    row: Mapping[str, Any] = {}
    try:
        row = decode(raw)
        return _without_gaps(row, wanted) if wanted.missing else row
    except RowError as error:
        error.known = error.known or row
        return _without_frames(error)
    except Exception as error:
        if is_a_bug(error) or isinstance(error, OrtdeployError):
            raise
        return RowError(f"the row cannot be read: {reason_of(error)}")


def _without_frames(error: RowError) -> RowError:
    """Return an error without what the code held that raised it, such as a large picture."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__context__
    return error


def _without_gaps(row: Mapping[str, Any], wanted: Wanted) -> Mapping[str, Any]:
    """Return a row with fillers for its empty values. Raises RowError if there is no filler."""
    filled = {name: _filled(row[name], filler, name, wanted) for name, filler in wanted.missing.items()}
    keys = {name: row[name] for name in wanted.keys if name in filled}
    return {**row, **filled, _READ: keys} if keys else {**row, **filled}


def _as_read(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with its keys as the file has them: what fills an empty value is fed, and not carried."""
    return {**row, **row[_READ]} if _READ in row else row


def _filled(value: Any, filler: Any, name: str, wanted: Wanted) -> Any:
    if isinstance(value, list):
        return [_filled(item, filler, name, wanted) for item in value]
    if value is not None and value != "":
        return value
    if filler is None:
        raise RowError(f'"{name}" is empty', "missing-value")
    is_number = value is None and filler == "nan" and wanted.dtypes.get(name) in FLOATING
    return math.nan if is_number else filler  # beside numbers, a number is read quickest


def _plain_column(values: list[Any], dtype: str | None) -> Column | None:
    """Return arrays, texts, numbers or nested lists as a column [rows, …]; None if some must be looked at alone."""
    if not values or isinstance(values[0], np.ndarray):
        return stack(values)
    try:
        column = _at_once(values, dtype or USUAL)
    except (RowError, ValueError, TypeError, OverflowError):
        return None
    if dtype is None and column is not None:
        arrays = column if isinstance(column, list) else [column]
        return None if any((np.abs(array) > exact_up_to(USUAL)).any() for array in arrays) else column
    return column


def _at_once(values: list[Any], dtype: str) -> Column | None:
    if dtype not in (*FLOATING, *INTEGERS):
        return stack([read_array(value, dtype) for value in values])
    if isinstance(values[0], str):
        array = _texts_as_numbers(values, dtype)
        return None if array is None else _held(array, dtype)
    try:
        array = np.array(values)
    except ValueError:  # lists of different lengths
        rows = [_held(np.array(value), dtype) for value in values]
        return None if any(row is None for row in rows) else rows
    return _held(array, dtype)


def _held(array: Array, dtype: str) -> Array | None:
    """Return what numpy has made of values as numbers of a type; None if they must be looked at alone.

    So must whole numbers that are written with decimals, which numpy may have rounded, and infinities: 1e400 is one.
    """
    if array.size and array.dtype.kind not in ("iu" if dtype in INTEGERS else "fiub"):
        return None
    held = convert(array, dtype)
    return None if dtype in FLOATING and np.isinf(held).any() else held


def _texts_as_numbers(values: list[str], dtype: str) -> Array | None:
    """Return texts as numbers [rows]; None if some are written in a way that needs a look."""
    if not is_plain("".join(values)):
        return None
    return np.array(list(map(int, values)) if dtype in INTEGERS else list(map(float, values)))


def _as_written(
    raw_rows: Sequence[RawRow], table: Sequence[Mapping[str, Any]], decode: Decode | None, wanted: Wanted
) -> Sequence[Mapping[str, Any]]:
    """Return decoded rows once more, with numbers as they are written."""
    if decode is None:
        return table
    again = (try_row(raw, decode, wanted) for raw in raw_rows)
    return [row if isinstance(found, RowError) else {**row, **found} for row, found in zip(table, again, strict=True)]


def _convert_alone(
    rows: Sequence[int],
    table: Sequence[Mapping[str, Any]],
    exact: Sequence[Mapping[str, Any]],
    dtypes: Mapping[str, str | None],
    refuse: Callable[[int, RowError], None],
) -> tuple[list[int], dict[str, Column]]:
    """Convert some columns row by row; return the places of the rows that can be converted, and these columns.

    `exact` are the rows of the table as they are converted.
    """
    good: dict[int, dict[str, Array]] = {}
    for place, row in enumerate(exact):
        try:
            good[place] = {name: _read_alone(row[name], dtype) for name, dtype in dtypes.items()}
        except RowError as error:
            error.known = _as_read(table[place])
            refuse(rows[place], error)
    return list(good), {name: stack([arrays[name] for arrays in good.values()]) for name in dtypes}


def _read_alone(value: Any, dtype: str | None) -> Array:
    return value if isinstance(value, np.ndarray) else read_array(value, dtype)


def stack(column: list[Any]) -> Column:
    """Stack rows […] of equal shape and type into one array [rows, …]; keep the list if they differ."""
    if not column or not isinstance(column[0], np.ndarray):
        return column
    first: Array = column[0]
    if all(value.shape == first.shape and value.dtype == first.dtype for value in column):
        return np.stack(column)
    return column


def read_array(value: Any, dtype: str | None) -> Array:
    """Read the value of a row, a number, a text or nested lists of them, as an array […]. Raises RowError."""
    name = dtype or USUAL
    if dtype == "string":
        return _text_array(value)
    try:
        array = np.array(value, dtype=object)
        if any(item is None or item == "" for item in array.flat):
            raise RowError("a value is empty where a number is wanted", "empty-value")
        numbers = read_numbers(array, name)
        rounded = next(rounded_wholes(array, name), None) if dtype is None else None
    except (ValueError, TypeError, OverflowError) as error:
        raise RowError(f"{_short(value)} is not {name}: {error}", "not-a-number") from error
    if rounded is None:
        return numbers
    why = f"{name} would round {rounded}, and no step tells another type; cast the column to int64 or float64 first"
    raise RowError(f"{_short(value)} is not {name}: {why}", "not-a-number")


def _text_array(value: Any) -> Array:
    array = np.array(value, dtype=object)
    if any(not isinstance(item, str) or isinstance(item, JsonNumber) for item in array.flat):
        raise RowError(f"{_short(value)} is not text", "not-text")
    return array


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"  # noqa: PLR2004  one line of a log
