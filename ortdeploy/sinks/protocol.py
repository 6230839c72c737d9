"""Protocol of sinks: a sink turns batches of result columns into the bytes of one part, and never opens a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.columns import Column

RowShape = tuple[int | None, ...] | None
"""The sizes of a column's rows, None if they may differ from row to row; None: nothing is known of them."""


class Sink(Protocol):
    """An open part. Columns have the rows first; keys may be lists."""

    @property
    def is_exact(self) -> bool:
        """Whether a file that is closed now holds all that `take_up` needs for equal bytes."""

    def take_up(self, path: Path) -> None:
        """Take the rows of a file that was closed early, before any batch, as if they were written again.

        What is written after them gives the bytes of a part that was never closed in between. Raises ValueError,
        OSError.
        """

    def write(self, columns: Mapping[str, Column]) -> None:
        """Take one batch; all columns have equally many rows."""

    def close(self) -> None:
        """Write what is still held back. The file itself is flushed and closed by who opened it."""


def as_rows(name: str, column: Column) -> npt.NDArray[Any]:
    """Return a column as one array, text as objects. Raises ValueError if its rows differ in shape."""
    try:
        array = np.asarray(column)
    except ValueError as error:
        raise ValueError(f"rows of {name} differ in shape, which an array cannot hold; use jsonl") from error
    return array.astype(object) if array.dtype.kind == "U" else array


def encoded(text: str) -> bytes:
    """Return text as UTF-8; what names of files hold that is none is written as escapes."""
    return text.encode("utf-8", "backslashreplace")


Order = Sequence[int]
"""Which rows a merged part has, in order: numbers below the old part's count are its rows, the others the new one's."""


class SinkModule(Protocol):
    """The names that a format's module has."""

    SUFFIX: str
    BLOCK_COPIES: int
    """What writing a block of results takes beside it, in units of its size."""
    PART_COPIES: int
    """What a part takes in memory until it is whole, in units of its size."""

    @property
    def PACKAGE(self) -> Package | None:  # noqa: N802  a module constant
        """The package that the format needs, beside the base install."""

    def open_sink(self, file: BinaryIO, columns: Mapping[str, RowShape], origin: str, /) -> Sink:
        """Begin a part with these columns, in this order, and their rows' shapes.

        `origin` is JSON for the format's own metadata.
        """

    def row_numbers(self, path: Path, /) -> Sequence[int]:
        """Return the column `row` of a part. Raises OSError, ValueError."""

    def merge(self, old: Path | None, new: Path, order: Order, file: BinaryIO) -> None:
        """Write the rows of two parts of one job as one, in another order. Raises ValueError, OSError."""
