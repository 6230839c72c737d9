"""Files that are one array of rows, read block by block; shared by .npy and raw tensors. Never loaded whole."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from ortdeploy.sources.arrays import COLUMN, ArraysError, ArraySource, Rows
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array

BLOCK_BYTES = 4 * 1024 * 1024
"""How much of a file is read at once; any number of whole requests."""


class _BlockedRows:
    """The rows of a mapped array, read block by block instead of through the map.

    Pages of a map stay in the resident set; a block of a few megabytes does not grow with the file and is as fast.
    """

    def __init__(self, path: str, mapped: np.memmap[Any, Any]) -> None:
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115  the source closes it
        self._offset = mapped.offset
        self._shape, self._dtype = mapped.shape, mapped.dtype
        self._row_bytes = math.prod(self._shape[1:]) * self._dtype.itemsize
        self._begin = self._end = 0
        self._block: Array = np.empty(0)

    def __len__(self) -> int:
        return int(self._shape[0])

    def __getitem__(self, rows: slice) -> Array:
        if rows.start < self._begin or rows.stop > self._end:
            self._read(rows.start, rows.stop)
        return self._block[rows.start - self._begin : rows.stop - self._begin]

    def _read(self, begin: int, end: int) -> None:
        """Read a block of whole requests that begins with this one."""
        asked = end - begin
        ahead = max(BLOCK_BYTES // max(self._row_bytes * asked, 1), 1) * asked
        self._begin, self._end = begin, min(begin + ahead, len(self))
        block = np.empty((self._end - begin, *self._shape[1:]), self._dtype)
        try:
            self._file.seek(self._offset + begin * self._row_bytes)
            _read_fully(self._file, memoryview(block.data).cast("B"))
        except OSError as error:
            raise ArraysError(f"{self._file.name} cannot be read: {error.strerror}") from error
        self._block = block

    def close(self) -> None:
        self._file.close()


def _read_fully(file: FileIO, target: memoryview) -> None:
    """Fill the target. Raises ArraysError when the file ends before, which means that it was cut meanwhile."""
    while target:
        count = file.readinto(target)
        if not count:
            raise ArraysError(f"{file.name} ends before its last row; did it change while it was read?")
        target = target[count:]


@contextmanager
def open_mapped(
    files: Sequence[str], folder: str, wanted: Wanted, map_file: Callable[[str], Array]
) -> Iterator[ArraySource]:
    """Open files as one run of rows; `map_file` maps one of them, which tells where its rows lie."""
    with ExitStack() as current:

        def load(path: str) -> dict[str, Rows]:
            current.close()
            mapped = map_file(path)
            if not (isinstance(mapped, np.memmap) and mapped.flags.c_contiguous and mapped.nbytes):
                return {COLUMN: mapped}  # rows that do not lie one after the other, or none, or text
            rows = _BlockedRows(path, mapped)
            current.callback(rows.close)
            return {COLUMN: rows}

        yield ArraySource(files, folder, wanted, load)
