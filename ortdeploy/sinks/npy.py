"""One NumPy array for each part, for jobs that write one column.

Rows are written as they come; the row count in the header is written last.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ortdeploy.files.opening import regular_path
from ortdeploy.sinks.protocol import Order, RowShape, as_array, no_types, of_one_type
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.json_values import text_array

SUFFIX = ".npy"
BLOCK_COPIES, PIECE, GATHERED, PART_COPIES = 0, 0, 0, 0
KEEPS_ZEROS = False
KEEPS_NULLS, KEEPS_SURROGATES = False, True
COLUMN_TYPES = "none"
PACKAGE = None


class _NpySink:
    is_exact = True

    def __init__(self, file: BinaryIO, column: str) -> None:
        self._file = file
        self._column = column
        self._first: np.ndarray[Any, Any] | None = None
        self._rows = 0
        self._held: list[np.ndarray[Any, Any]] = []

    def take_up(self, path: Path) -> None:
        self.write({self._column: np.load(regular_path(path), mmap_mode="r", allow_pickle=False)})

    def write(self, columns: Mapping[str, Column]) -> None:
        array = as_array(self._column, columns[self._column])
        if self._first is None:
            self._first = array[:0].copy()  # keeps neither a block in memory nor a file mapped
            self._write_header(array, rows=0)
        if (array.shape[1:], array.dtype) != (self._first.shape[1:], self._first.dtype):
            raise ValueError(f"rows of {self._column} differ in shape, which an array cannot hold; use jsonl")
        self._rows += len(array)
        if array.dtype == object:
            self._held.append(array)  # the width of text is that of the longest
        else:
            self._file.write(np.ascontiguousarray(array).data)

    def close(self) -> None:
        if self._first is None:
            return
        self._file.seek(0)
        if self._held:
            text = text_array(np.concatenate(self._held))
            np.lib.format.write_array(self._file, text, version=(1, 0), allow_pickle=False)
        else:
            self._write_header(self._first, self._rows)
            self._file.seek(0, 2)

    def _write_header(self, like: "np.ndarray[Any, Any]", rows: int) -> None:
        """Write a header for arrays like this one; numpy leaves room in it for a growing number of rows."""
        header = {
            "descr": np.lib.format.dtype_to_descr(like.dtype),
            "fortran_order": False,
            "shape": (rows, *like.shape[1:]),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], _origin: str, _types: Mapping[str, str]) -> _NpySink:
    """Begin a part. The format has no place for the origin of a part; the report has it."""
    return _NpySink(file, next(iter(columns)))


column_types = no_types


def row_numbers(path: Path) -> list[int]:
    """Raise ValueError: a part has one column, and no room for row numbers."""
    raise ValueError(f"{path.name} holds one column, and none of the rows' numbers")


def merge(parts: Sequence[Path], order: Order, file: BinaryIO) -> None:
    """Write chosen rows of several parts of one job as one part, in the given order."""
    arrays = [np.load(regular_path(path), allow_pickle=False) for path in parts]
    np.lib.format.write_array(
        file, np.concatenate(of_one_type("its column", arrays))[list(order)], version=(1, 0), allow_pickle=False
    )
