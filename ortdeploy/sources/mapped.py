"""Files that are one array of rows, read block by block; shared by .npy and raw tensors. Never loaded whole.

A file is mapped only to find its rows; they are read with plain reads. If the file is cut meanwhile, a read fails, but
touching a page of a map would kill the process. Pages of a map would also stay in the resident set.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ortdeploy.files.numpy_files import fill
from ortdeploy.files.opening import open_unbuffered
from ortdeploy.sources.arrays import COLUMN, ArraySource, Rows
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array

BLOCK_BYTES = 4 * 1024 * 1024
"""Bytes of a file that are read at once."""

_STRIP_BYTES = 4096
"""Bytes of each column that are read at once at least, if the rows of a file are not contiguous."""
_MOST_STRIP_BYTES = 32 * 1024 * 1024
"""Bytes that the strips of all columns may take together."""
_CACHE_LINE = 64
_READ_THROUGH = 128 * 1024
"""Bytes that are read at once if strips are near each other."""


class BlockedRows:
    """The rows of an array [rows, …] in a file, read block by block; the bytes of a row are contiguous."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[int, memoryview], None]) -> None:
        """Take a function that fills a buffer with the array's bytes from an offset on."""
        self.shape, self.dtype = shape, dtype
        self._fill = read
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._begin = self._end = 0
        self._block: Array = np.empty(0)

    def __getitem__(self, rows: slice) -> Array:
        """Return some rows, [rows, …]."""
        if rows.start < self._begin or rows.stop > self._end:
            self._read(rows.start, rows.stop)
        return self._block[rows.start - self._begin : rows.stop - self._begin]

    def _read(self, begin: int, end: int) -> None:
        """Read a block of whole requests that begins with this one, and keep it."""
        asked = end - begin
        ahead = max(self._block_bytes() // max(self._row_bytes * asked, 1), 1) * asked
        stop = min(begin + ahead, self.shape[0])
        self._block, self._begin, self._end = self._rows(begin, stop), begin, stop

    def _block_bytes(self) -> int:
        return BLOCK_BYTES

    def _rows(self, begin: int, stop: int) -> Array:
        block = np.empty((stop - begin, *self.shape[1:]), self.dtype)
        here = min(max(self._end - begin, 0), len(block)) if begin >= self._begin else 0
        if here:
            block[:here] = self._block[begin - self._begin :][:here]
        self._fill_with(block[here:], (begin + here) * self._row_bytes)
        return block

    def _fill_with(self, target: Array, offset: int) -> None:
        """Fill a contiguous array […] with the bytes from an offset in bytes on."""
        if target.nbytes:
            self._fill(offset, target.reshape(-1).view(np.uint8).data)


class BlockedColumns(BlockedRows):
    """The rows of an array [rows, …] in Fortran order: the bytes of one element of all rows are contiguous."""

    def _block_bytes(self) -> int:
        return _strip_bytes(self._row_bytes // self.dtype.itemsize)

    def _rows(self, begin: int, stop: int) -> Array:
        size, count = self.dtype.itemsize, self.shape[0]
        width, places = (stop - begin) * size, self._row_bytes // size
        pitch = _pitch(width)
        lines = np.empty(places * pitch, np.uint8)
        strips = lines.reshape(places, pitch)[:, :width].view(self.dtype)
        together = _READ_THROUGH // (count * size)
        if together > 1:
            self._read_through(strips, begin, stop, together)
        else:
            for place in range(places):
                start = place * pitch
                self._fill((place * count + begin) * size, lines.data[start : start + width])
        return strips.reshape(*reversed(self.shape[1:]), stop - begin).T

    def _read_through(self, strips: Array, begin: int, stop: int, together: int) -> None:
        """Fill strips [places, rows] that lie near each other in one read, with the bytes between.

        That is faster than a read for each of them.
        """
        count = self.shape[0]
        whole = np.empty((together, count), self.dtype)
        for place in range(0, len(strips), together):
            some = whole[: len(strips) - place]
            self._fill_with(some, place * count * self.dtype.itemsize)
            strips[place : place + together] = some[:, begin:stop]


def _strip_bytes(places: int) -> int:
    """Return the bytes of the strips of a number of columns."""
    return min(max(BLOCK_BYTES, places * _STRIP_BYTES), _MOST_STRIP_BYTES)


def held_bytes(array: Array) -> int:
    """Return the bytes that reading a mapped array [rows, …] takes if its rows are not contiguous: two blocks."""
    if not isinstance(array, np.memmap) or array.flags.c_contiguous:
        return 0
    return 2 * min(array.nbytes, _strip_bytes(math.prod(array.shape[1:])))


def _pitch(width: int) -> int:
    """Return the distance between strips of a size: an odd number of cache lines.

    Gathering a row takes one value of each strip. At distances of a power of two, all of them fall into the same few
    lines of the processor's cache, and gathering takes two to three times as long.
    """
    return (-(-width // _CACHE_LINE) | 1) * _CACHE_LINE


def _open_blocked(path: str, mapped: "np.memmap[Any, Any]", stack: ExitStack) -> BlockedRows:
    """Open a file that was mapped, to be read instead."""
    file = stack.enter_context(open_unbuffered(path))

    def read(offset: int, target: memoryview) -> None:
        place = mapped.offset + offset
        if sys.platform != "win32" and os.preadv(file.fileno(), [target], place) == len(target):
            return  # one system call instead of two, for each of many strips
        file.seek(place)
        fill(file, target, path)

    rows = BlockedRows if mapped.flags.c_contiguous else BlockedColumns
    return rows(mapped.shape, mapped.dtype, read)


@contextmanager
def open_mapped(
    files: Sequence[str], folder: str, wanted: Wanted, map_file: Callable[[str], Array]
) -> Iterator[ArraySource]:
    """Open files as one series of rows; `map_file` maps a file, whose array is [rows, …], to find its rows."""
    with ExitStack() as current:

        def load(path: str) -> dict[str, Rows]:
            current.close()
            mapped = map_file(path)
            if not (isinstance(mapped, np.memmap) and mapped.nbytes):
                return {COLUMN: mapped}  # no rows, or text
            return {COLUMN: _open_blocked(path, mapped, current)}

        yield ArraySource(files, folder, wanted, load)
