"""Files that are one array of rows, read block by block; shared by .npy and raw tensors. Never loaded whole."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ortdeploy.files.numpy_files import fill
from ortdeploy.sources.arrays import COLUMN, ArraySource, Rows
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array

BLOCK_BYTES = 4 * 1024 * 1024
"""How much of a file is read at once; any number of whole requests."""


class BlockedRows:
    """The rows of an array in a file, read block by block.

    Pages of a map stay in the resident set; a block of a few megabytes does not grow with the file and is as fast.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[int, memoryview], None]) -> None:
        """Take what fills a buffer with the array's bytes from an offset on."""
        self.shape, self.dtype = shape, dtype
        self._fill = read
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._begin = self._end = 0
        self._block: Array = np.empty(0)

    def __getitem__(self, rows: slice) -> Array:
        """Return some rows."""
        if rows.start < self._begin or rows.stop > self._end:
            self._read(rows.start, rows.stop)
        return self._block[rows.start - self._begin : rows.stop - self._begin]

    def _read(self, begin: int, end: int) -> None:
        """Read a block of whole requests that begins with this one; what of it is here is kept."""
        asked = end - begin
        ahead = max(BLOCK_BYTES // max(self._row_bytes * asked, 1), 1) * asked
        stop = min(begin + ahead, self.shape[0])
        block = np.empty((stop - begin, *self.shape[1:]), self.dtype)
        here = min(max(self._end - begin, 0), len(block)) if begin >= self._begin else 0
        if here:
            block[:here] = self._block[begin - self._begin :][:here]
        if block[here:].nbytes:
            self._fill((begin + here) * self._row_bytes, block[here:].reshape(-1).view(np.uint8).data)
        self._block, self._begin, self._end = block, begin, stop


def _open_blocked(path: str, mapped: "np.memmap[Any, Any]", stack: ExitStack) -> BlockedRows:
    """Open a file that was mapped, to be read instead."""
    file = stack.enter_context(Path(path).open("rb", buffering=0))  # noqa: SIM115  the stack closes it

    def read(offset: int, target: memoryview) -> None:
        file.seek(mapped.offset + offset)
        fill(file, target, path)

    return BlockedRows(mapped.shape, mapped.dtype, read)


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
                return {COLUMN: mapped}  # rows that do not lie one after the other, or none
            return {COLUMN: _open_blocked(path, mapped, current)}

        yield ArraySource(files, folder, wanted, load)
