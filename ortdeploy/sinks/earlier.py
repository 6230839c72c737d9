"""The parts that an output has when a job begins: the columns of new parts get their types."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class EarlierParts:
    """The files of parts, in their order; the first one that is there is read, once, when somebody asks."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Take the files, any of which may be carried away at any moment; none is touched yet."""
        self._files = files
        self._is_read = False
        self._schema: pa.Schema | None = None

    def schema(self, read: "Callable[[Path], pa.Schema]") -> "pa.Schema | None":
        """Return what `read` returns for the first file that is there; None if none is. Raises what `read` raises."""
        if not self._is_read:
            self._schema = self._first(read)
            self._is_read, self._files = True, ()  # a file that was fetched to be read is deleted
        return self._schema

    def _first(self, read: "Callable[[Path], pa.Schema]") -> "pa.Schema | None":
        for file in self._files:
            try:
                return read(file)
            except FileNotFoundError:
                continue
        return None
