"""Writes one line an item: exploded outputs of a job are written item by item, with the columns `row` and `item`.

A job still counts rows of the input: in parts, failures, budgets and retry.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.plan.steps import RunJob
from ortdeploy.sinks.protocol import RowShape
from ortdeploy.tensors.arrow_types import result_type_name
from ortdeploy.tensors.columns import Array, Column, join, numbers
from ortdeploy.tensors.types import LINE_COLUMNS

ROW, ITEM = LINE_COLUMNS


def written_columns(job: RunJob) -> dict[str, RowShape]:
    """Return the columns of a job's parts, in their order, with the shapes of their lines."""
    shapes = dict(zip(job.output.columns, job.output.row_shapes, strict=True))
    keys: dict[str, RowShape] = dict.fromkeys(job.input.key)
    if not job.output.explode:
        return {**keys, **shapes}
    of_items = {name: shapes[name] for name in job.output.explode}
    return {**keys, ROW: (), ITEM: (), **shapes, **{name: shape and shape[1:] for name, shape in of_items.items()}}


def texts_in_lists(job: RunJob) -> dict[str, str]:
    """Return the types of results that list texts: where no row lists any, only the plan tells that."""
    shapes, dtypes = written_columns(job), dict(zip(job.output.columns, job.output.dtypes, strict=True))
    names = {name: result_type_name("string", shapes[name]) for name, dtype in dtypes.items() if dtype == "string"}
    return {name: kind for name, kind in names.items() if kind is not None and name not in job.output.files}


def check_lists(columns: Mapping[str, Column], exploded: Sequence[str]) -> None:
    """Raise ValueError if the exploded columns of a row do not list the same number of items."""
    lengths = {name: _lengths(name, columns[name]) for name in exploded}
    first, *others = exploded
    for name in others:
        apart = np.flatnonzero(lengths[first] != lengths[name])
        if apart.size:
            place = int(apart[0])
            raise ValueError(
                f"the row lists {lengths[first][place]} items in {first} and {lengths[name][place]} in {name}; columns "
                "that are exploded together must list the same items"
            )


def _lengths(name: str, column: Column) -> Array:
    """Return how many items each row lists."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        return np.full(len(column), column.shape[1], dtype=np.int64)
    try:
        return np.array([_length(row) for row in column], dtype=np.int64)
    except TypeError as error:
        raise ValueError(f"the row's {name} is one value, and lists nothing") from error


def _length(row: Any) -> int:
    """Return how many items a row lists. Raises TypeError for a single value."""
    if isinstance(row, str | dict):
        raise TypeError("letters and names of a map are no items")
    return len(row)


def as_lines(columns: Mapping[str, Column], rows: Sequence[int], exploded: Sequence[str]) -> dict[str, Column]:
    """Return columns [rows, …] as columns [lines, …], one line an item; other values repeat in each line of their row.

    The lists of a row have one length: `check_lists` has checked that.
    """
    counts = _lengths(exploded[0], columns[exploded[0]])
    lines: dict[str, Column] = {name: _repeated(column, counts) for name, column in columns.items()}
    lines |= {name: _items(columns[name]) for name in exploded}
    lines[ROW] = np.repeat(numbers(rows), counts)
    lines[ITEM] = np.concatenate([np.arange(count, dtype=np.int64) for count in counts] or [np.zeros(0, np.int64)])
    return lines


def _items(column: Column) -> Column:
    """Return the items of all rows, in their order."""
    if isinstance(column, np.ndarray):
        return column.reshape(column.shape[0] * column.shape[1], *column.shape[2:])
    return join([row for row in column if len(row)] or column[:1])


def _repeated(column: Column, counts: Array) -> Column:
    """Return the values of rows, once for each item."""
    if isinstance(column, np.ndarray):
        return np.repeat(column, counts, axis=0)
    return [value for value, count in zip(column, counts, strict=True) for _ in range(count)]
