"""What a sink is: it turns batches of result columns into the bytes of one part. It never opens or names a file."""

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Protocol

import numpy.typing as npt

Column = npt.NDArray[Any] | list[Any]


class Sink(Protocol):
    """An open part. Columns have the rows first; keys may be lists."""

    def write(self, columns: Mapping[str, Column]) -> None:
        """Take one batch; all columns have equally many rows."""

    def close(self) -> None:
        """Write what is still held back. The file itself is flushed and closed by who opened it."""


class SinkModule(Protocol):
    """The names that a format's module has."""

    SUFFIX: str

    def open_sink(self, file: BinaryIO, columns: Sequence[str], origin: str, /) -> Sink:
        """Begin a part with these columns, in this order; `origin` is JSON for the format's own metadata."""
