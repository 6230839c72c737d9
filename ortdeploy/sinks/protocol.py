"""Protocol of sinks: a sink turns blocks of result columns into the bytes of one part, and never opens a file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.conversion import convert, joint_type, rounded_places
from ortdeploy.tensors.types import FLOATING

RowShape = tuple[int | None, ...] | None
"""The shape of a column's rows, with None for sizes that differ between rows; None: the shape is unknown."""


def no_types(_path: Path) -> Mapping[str, str]:
    """Return no types: the `column_types` of formats that have none of columns."""
    return {}


_TEXT_VALUES = 64 * 1024
"""The values that become text at once."""

TEXT_BYTES = 4 * _TEXT_VALUES
"""Their bytes, if they are float32: Python's objects and the text take twenty times as much."""


class Sink(Protocol):
    """An open part. A column is an array [rows, …] or a list with one element for each row."""

    @property
    def is_exact(self) -> bool:
        """Whether `take_up` could continue a part that is closed now with the bytes of one that was never closed."""

    def take_up(self, path: Path) -> None:
        """Take the rows of a file that was closed early, before anything else is written.

        The part then gets the same bytes as one that was never closed in between. Raises ValueError, OSError.
        """

    def write(self, columns: Mapping[str, Column]) -> None:
        """Take one block: columns [rows, …] by name, all with the same number of rows."""

    def close(self) -> None:
        """Write the rows that are still buffered. Whoever opened the file flushes and closes it."""


def as_rows(name: str, column: Column) -> Array:
    """Return a column as one array [rows, …], text and bytes as objects. Raises ValueError if rows differ in shape."""
    try:
        array = np.asarray(column)
    except ValueError as error:
        raise ValueError(f"rows of {name} differ in shape, which an array cannot hold; use jsonl") from error
    if array.dtype.kind == "S" and isinstance(column, list):  # numpy's own bytes lose zeros at their end
        return np.array(column, dtype=object)
    return array.astype(object) if array.dtype.kind in "US" else array


def as_array(name: str, column: Column) -> Array:
    """Return a column as one array [rows, …] that holds each value as it is, text and bytes as objects.

    Raises ValueError if rows differ in shape, or if no element type holds all of their values.
    """
    if isinstance(column, np.ndarray) or not column or isinstance(column[0], np.ndarray):
        return as_rows(name, column)
    objects = as_rows(name, _objects(column))
    values = objects.ravel().tolist()
    kinds = {type(value) for value in values}
    if kinds & {list, dict, tuple}:
        raise ValueError(f"rows of {name} differ in shape or hold maps, which an array cannot hold; use jsonl")
    dtype = joint_type(values)
    if dtype is None and (len(kinds) > 1 or kinds & {int, type(None)}):
        raise ValueError(f"no element type holds all values of {name} as they are ({_unlike(values)}); use jsonl")
    return objects if dtype in {None, "string"} else convert(objects, str(dtype))


def _objects(column: Sequence[Any]) -> Array:
    """Return values, or nested lists of one shape, as objects [rows, …]."""
    try:
        return np.array(column, dtype=object)
    except ValueError:  # the first sizes of lists agree and others do not
        return np.array([None, *column], dtype=object)[1:]


def _unlike(values: Sequence[Any]) -> str:
    """Return two values that are not of one kind, or the least and the largest whole number."""
    of_kind = {type(value): value for value in values}
    shown = list(of_kind.values())[:2] if len(of_kind) > 1 else [min(values), max(values)]
    return " and ".join("null" if value is None else repr(value) for value in shown)


def of_one_type(name: str, arrays: Sequence[Array]) -> list[Array]:
    """Return arrays [rows, …] of one column in one element type that holds each value as it is. Raises ValueError."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) <= 1:
        return list(arrays)
    kinds = {"number" if dtype.kind in "iuf" else "text" if dtype.kind in "OU" else dtype.name for dtype in dtypes}
    if kinds == {"text"}:
        return list(arrays)
    if kinds != {"number"}:
        called = " and ".join(sorted(map(_called, dtypes)))
        raise ValueError(f"rows of {name} are {called}, of which an array holds one")
    whole = [array for array in arrays if array.dtype.kind in "iu"]
    if len(whole) == len(arrays):
        dtype = joint_type(value for array in arrays for value in _ends_of(array)) or "float64"
    else:
        dtype = np.result_type(*dtypes).name
    if dtype in FLOATING and any(rounded_places(array.reshape(-1), dtype) for array in whole):
        raise ValueError(f"no element type holds all values of {name} as they are; use jsonl")
    return [convert(array, dtype) for array in arrays]


def _ends_of(array: Array) -> list[Any]:
    """Return the least and the largest value of an array […], which decide what holds it."""
    return [array.min().item(), array.max().item()] if array.size else []


def _called(dtype: "np.dtype[Any]") -> str:
    return "text" if dtype.kind == "O" else dtype.name


def in_pieces(columns: Mapping[str, Column]) -> Iterator[Mapping[str, Column]]:
    """Yield a block's columns [rows, …] in pieces of some rows, one at least; a block without rows is one.

    Raises ValueError if the columns have different numbers of rows.
    """
    rows, *others = {len(column) for column in columns.values()} or {0}
    if others:
        raise ValueError(f"columns have {sorted([rows, *others])} rows")
    values = sum(getattr(column[0], "size", 1) for column in columns.values()) if rows else 0
    step = max(1, _TEXT_VALUES // max(values, 1))
    for start in range(0, max(rows, 1), step):
        yield {name: column[start : start + step] for name, column in columns.items()}


def encoded(text: str) -> bytes:
    """Return text as UTF-8; bytes of file names that are no valid UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace")


Order = Sequence[int]
"""The rows of a merged part, in order; rows are counted from 0 through all files, beginning with the first file."""


class SinkModule(Protocol):
    """The names that a format's module has."""

    SUFFIX: str
    BLOCK_COPIES: int
    """Memory that writing takes beside what is written at once, as a multiple of its size."""
    PIECE: int
    """Bytes of a block's numbers that are written at once; 0: the whole block."""
    GATHERED: int
    """Bytes of rows that are gathered to be written at once; 0: blocks are written as they come."""
    PART_COPIES: int
    """Memory that a part takes until it is complete, as a multiple of its size."""
    KEEPS_ZEROS: bool
    KEEPS_NULLS: bool
    KEEPS_SURROGATES: bool
    """What values may be, as `lost.Holds` has it."""
    COLUMN_TYPES: str
    """Which types columns have in a part: `all` that Arrow has, those of `single` values, or `none`."""

    @property
    def PACKAGE(self) -> Package | None:  # noqa: N802  a module constant
        """The package that the format needs beside the base install, or None."""

    def open_sink(
        self, file: BinaryIO, columns: Mapping[str, RowShape], origin: str, types: Mapping[str, str], /
    ) -> Sink:
        """Begin a part with these columns, in this order, and the shapes of their rows.

        `origin` is JSON about where the part comes from, for the metadata of the format. `types` are those that columns
        have in all parts.
        """

    def column_types(self, path: Path, /) -> Mapping[str, str]:
        """Return the types of columns of a part, by name, of those that it tells. Raises OSError, ValueError."""

    def row_numbers(self, path: Path, /) -> Sequence[int]:
        """Return the column `row` of a part. Raises OSError, ValueError."""

    def merge(self, parts: Sequence[Path], order: Order, file: BinaryIO) -> None:
        """Write chosen rows of several parts of one job as one part, in the given order. Raises ValueError, OSError."""
