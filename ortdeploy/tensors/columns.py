"""Columns: one value per row, as an array [rows, …] or as a list if rows differ in shape."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
Column = Array | list[Any]
"""An array [rows, …]; or a list [rows] with one array or value for each row, if rows differ in shape."""

OpRun = Callable[[Mapping[str, Column], int], Mapping[str, Column]]
"""What op steps do: from columns, and the number of rows, to columns."""

OpRunners = Mapping[str, OpRun]
"""What runs op steps, by the names of their sessions."""


def pick(column: Column, places: Sequence[int]) -> Column:
    """Return some rows [places, …] of a column [rows, …], in the order of their places."""
    return column[list(places)] if isinstance(column, np.ndarray) else [column[place] for place in places]


def finite_rows(column: Column) -> Array:
    """Return for each row whether all its numbers are finite: bool [rows]."""
    if isinstance(column, list):
        return np.array([_is_finite(value) for value in column], dtype=bool)
    return np.asarray(np.isfinite(column).reshape(len(column), -1).all(axis=1))


def _is_finite(value: Any) -> bool:
    """Return whether all numbers of a sequence or a map are finite."""
    if isinstance(value, dict | list):
        return all(_is_finite(item) for item in (value.values() if isinstance(value, dict) else value))
    numbers = np.asarray(value)
    return not np.issubdtype(numbers.dtype, np.floating) or bool(np.isfinite(numbers).all())


def numbers(rows: Sequence[int]) -> Array:
    """Return the numbers of rows, int64 [rows]; numpy alone would take a range number by number."""
    if isinstance(rows, range):
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
    return np.asarray(rows, dtype=np.int64)


def constant(value: str, rows: int) -> Array:
    """Return one value for all rows as objects [rows], which take the room of one: the stride is 0."""
    one = np.empty(1, dtype=object)
    one[0] = value
    return np.broadcast_to(one, rows)


def join(columns: Sequence[Column]) -> Column:
    """Return columns [rows, …] one after the other: an array if all are arrays of like rows, else a list of rows."""
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns) and _are_alike(arrays):
        return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    return [row for column in columns for row in column]


def _are_alike(arrays: Sequence[Array]) -> bool:
    """Return whether arrays have rows of one shape and one kind; there may be hundreds, mostly of the same shape."""
    shapes = {shape[1:] for shape in set(map(attrgetter("shape"), arrays))}
    kinds = {dtype.kind for dtype in set(map(attrgetter("dtype"), arrays))}
    return len(shapes) == len(kinds) == 1


def beside(rows: Sequence[Array]) -> Array:
    """Return rows […] that differ in shape as objects [rows]."""
    column = np.empty(len(rows), dtype=object)
    for place, row in enumerate(rows):
        column[place] = row
    return column


def is_beside(column: Array) -> bool:
    """Return whether an array is objects [rows], because its rows differ in shape."""
    return column.dtype == object and column.ndim == 1 and column.size > 0 and isinstance(column[0], np.ndarray)


def size_bytes(columns: Mapping[str, Column]) -> int:
    """Return the bytes that arrays of columns [rows, …] take; also those in a list."""
    return sum(_bytes_of(column) for column in columns.values())


def _bytes_of(column: Column) -> int:
    if isinstance(column, np.ndarray):
        return column.nbytes
    return sum(value.nbytes for value in column if isinstance(value, np.ndarray))
