"""NumPy archives: one array for each column. A part is held in memory until it is complete; rows_per_part limits it."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from ortdeploy.files.opening import regular_path
from ortdeploy.sinks.protocol import Order, RowShape, as_array, of_one_type
from ortdeploy.tensors.carried import SINGLE, TEXT
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.json_values import text_array

SUFFIX = ".npz"
BLOCK_COPIES, PIECE, GATHERED, PART_COPIES = 0, 0, 0, 1
KEEPS_ZEROS = False
KEEPS_NULLS, KEEPS_SURROGATES = False, True
COLUMN_TYPES = "single"
PACKAGE = None


class _NpzSink:
    def __init__(self, file: BinaryIO, columns: Sequence[str], origin: str) -> None:
        self._file = file
        self._origin = origin
        self._parts: dict[str, list[Array]] = {name: [] for name in columns}
        self._empty: dict[str, Column] = {}

    @property
    def is_exact(self) -> bool:
        """Whether joining now changes no column's element type; numbers joined later may become another text."""
        return all(len({part.dtype for part in parts}) <= 1 for parts in self._parts.values())

    def take_up(self, path: Path) -> None:
        with np.load(regular_path(path), allow_pickle=False) as arrays:
            self.write({name: arrays[name] for name in self._parts})

    def write(self, columns: Mapping[str, Column]) -> None:
        if not any(map(len, columns.values())):
            self._empty = dict(columns)
            return
        for name, parts in self._parts.items():
            column = as_array(name, columns[name])
            if parts and column.shape[1:] != parts[0].shape[1:]:
                raise ValueError(f"rows of {name} differ in shape, which an array cannot hold; use jsonl")
            parts.append(column)

    def close(self) -> None:
        """Write the archive; text gets numpy's unicode type, which needs no pickle."""
        empty = {name: [as_array(name, column)] for name, column in self._empty.items()}
        with zipfile.ZipFile(self._file, "w") as archive:
            for name, parts in self._parts.items():
                entry = zipfile.ZipInfo(f"{name}.npy")  # unlike numpy's, without the time: equal rows, equal bytes
                with archive.open(entry, "w", force_zip64=True) as file:
                    _write_array(file, _joined(name, parts or empty[name]))
            archive.comment = self._origin.encode()


def _joined(name: str, parts: list[Array]) -> list[Array]:
    """Return the batches of a column in one type of numbers, or joined as text."""
    parts = of_one_type(name, parts)
    return [text_array(np.concatenate(parts))] if parts[0].dtype == object else parts


def _write_array(file: IO[bytes], parts: list[Array]) -> None:
    """Write the batches of a column, arrays `[rows, …]` of one type, as one array; nothing is copied to join them."""
    first, rows = parts[0], sum(map(len, parts))
    described = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, {**described, "shape": (rows, *first.shape[1:])})
    for part in parts:
        file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], origin: str, _types: Mapping[str, str]) -> _NpzSink:
    """Begin a part; the comment of the archive has its origin."""
    return _NpzSink(file, tuple(columns), origin)


def column_types(path: Path) -> dict[str, str]:
    """Return the types of the columns of a part whose rows are single values, by name."""
    with np.load(regular_path(path), allow_pickle=False) as arrays:
        dtypes = {name: arrays[name].dtype for name in arrays.files if arrays[name].ndim == 1}
    names = {name: TEXT if dtype.kind == "U" else dtype.name for name, dtype in dtypes.items()}
    return {name: kind for name, kind in names.items() if kind in SINGLE}


def row_numbers(path: Path) -> list[int]:
    """Return the column `row` of a part."""
    with np.load(regular_path(path), allow_pickle=False) as arrays:
        return [int(number) for number in arrays["row"]]


def merge(parts: Sequence[Path], order: Order, file: BinaryIO) -> None:
    """Write chosen rows of several parts of one job as one part, in the given order."""
    found: dict[str, list[Column]] = {}
    for path in parts:
        with zipfile.ZipFile(regular_path(path)) as archive:
            origin = archive.comment.decode()
        with np.load(regular_path(path), allow_pickle=False) as arrays:
            for name in arrays.files:
                found.setdefault(name, []).append(arrays[name])
    sink = _NpzSink(file, tuple(found), origin)
    for columns in found.values():
        columns[:] = [column for column in columns if len(column)] or columns[-1:]
    places = np.array(order, dtype=np.int64)
    arrays = {name: of_one_type(name, [np.asarray(one) for one in columns]) for name, columns in found.items()}
    sink.write({name: np.concatenate(columns)[places] for name, columns in arrays.items()})
    sink.close()
