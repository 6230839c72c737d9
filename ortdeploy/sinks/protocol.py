"""Protocol of sinks: a sink turns blocks of result columns into the bytes of one part, and never opens a file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.columns import Array, Column

RowShape = tuple[int | None, ...] | None
"""The shape of a column's rows, with None for sizes that differ between rows; None: the shape is unknown."""

NO_TYPES: Mapping[str, str] = {}

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


def ends_in_zero(value: Any) -> bool:
    """Return whether a text ends in U+0000: a value, or one of those in a column or list of them."""
    if isinstance(value, str):
        return value.endswith("\0")
    if isinstance(value, np.ndarray):
        return value.dtype == object and any(map(ends_in_zero, value.flat))
    return isinstance(value, list | tuple) and any(map(ends_in_zero, value))


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
    """Whether texts may end in U+0000; numpy fills texts of an array up with them."""
    COLUMN_TYPES: str
    """Which types columns have in a part: `all` that Arrow has, those of `single` values, or `none`."""

    @property
    def PACKAGE(self) -> Package | None:  # noqa: N802  a module constant
        """The package that the format needs beside the base install, or None."""

    def open_sink(
        self, file: BinaryIO, columns: Mapping[str, RowShape], origin: str, types: Mapping[str, str] = NO_TYPES, /
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
