"""NumPy arrays: one .npy file holds the rows of one array along its first dimension. Never loaded whole."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from ortdeploy.facts import InputFacts, Problem
from ortdeploy.sources.arrays import ArraysError, ArraySource, Rows, as_rows, tensor_type
from ortdeploy.sources.protocol import Array, Wanted

SUFFIXES = (".npy",)
FIRST_ROWS = 64
PACKAGE = None

BLOCK_BYTES = 4 * 1024 * 1024
"""How much of a file is read at once; any number of whole batches."""

COLUMN = "array"
"""The name of the one column that a .npy file has."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the headers; all files must hold rows of one shape and type."""
    rows = 0
    first: Array | None = None
    for path in files:
        try:
            array = _map(path)
        except ArraysError as error:
            return replace(facts, problem=Problem(kind="unreadable", detail=f"{error}."))
        first = array if first is None else first
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            detail = f"{path} holds {tensor_type(array)}, and {files[0]} {tensor_type(first)}."
            return replace(facts, problem=Problem(kind="unreadable", detail=detail))
        rows += len(array)
    return replace(facts, columns={COLUMN: tensor_type(first)} if first is not None else {}, rows=rows)


def _map(path: str) -> Array:
    """Map a file to look at it. Raises ArraysError."""
    try:
        with Path(path).open("rb") as file:
            magic = file.read(6)
        if magic != b"\x93NUMPY":
            raise ArraysError(f"{path} is not a .npy file")
        return as_rows(np.load(path, mmap_mode="r", allow_pickle=False), path)
    except (ValueError, EOFError, OSError) as error:
        raise ArraysError(f"{path} cannot be read as .npy: {error}") from error


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
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[ArraySource]:
    """Open the files as one run of rows; one file is open at a time."""
    with ExitStack() as current:

        def load(path: str) -> dict[str, Rows]:
            current.close()
            mapped = _map(path)
            if not (isinstance(mapped, np.memmap) and mapped.flags.c_contiguous and mapped.nbytes):
                return {COLUMN: mapped}  # rows that do not lie one after the other, or none, or text
            rows = _BlockedRows(path, mapped)
            current.callback(rows.close)
            return {COLUMN: rows}

        yield ArraySource(files, folder, wanted, load)
