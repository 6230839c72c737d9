"""Rows of arrays over several files; shared by .npy and .npz. Slices of mapped arrays are handed on without a copy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.sources.files import shown
from ortdeploy.sources.protocol import Array, Batch, Column, Wanted
from ortdeploy.tensors import ELEMENT_TYPES, ROWS, TensorType

_KINDS_OF_TEXT = "US"


class ArraysError(OrtdeployError):
    """A file does not hold arrays of rows."""


def as_rows(array: Array, name: str) -> Array:
    """Return an array whose rows can be sliced: native byte order, a known element type. Raises ArraysError."""
    if array.ndim == 0:
        raise ArraysError(f"{name} is a single value, not rows")
    if array.dtype.kind in _KINDS_OF_TEXT:
        return array.astype(str).astype(object)
    if array.dtype.newbyteorder("=").name not in ELEMENT_TYPES:
        raise ArraysError(f"{name} has the element type {array.dtype}, which no model input has")
    return array


def tensor_type(array: Array) -> TensorType:
    """Return the type of rows, the first dimension being the rows."""
    dtype = "string" if array.dtype == object else array.dtype.newbyteorder("=").name
    return TensorType(dtype, (ROWS, *array.shape[1:]))


class Rows(Protocol):
    """What slices of rows are taken from: an array, or something that reads them from a file."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, rows: slice, /) -> Array:
        """Return some rows."""


@dataclass(frozen=True, slots=True)
class ArraySource:
    """Batches over files whose arrays `load` returns by column name."""

    files: Sequence[str]
    folder: str
    wanted: Wanted
    load: Callable[[str], Mapping[str, Rows]]

    def batches(self, start: int, size: int) -> Iterator[Batch]:
        """Yield batches that run across file borders."""
        pieces: list[dict[str, Column]] = []
        have, row = 0, start
        for piece in self._pieces(start, size):
            pieces.append(piece)
            have += len(next(iter(piece.values())))
            if have >= size:
                yield self._batch(pieces, row, have)
                pieces, have, row = [], 0, row + have
        if have:
            yield self._batch(pieces, row, have)

    def _pieces(self, start: int, size: int) -> Iterator[dict[str, Column]]:
        """Yield slices that end where a batch or a file ends."""
        row = 0
        for path in self.files:
            arrays, name = self.load(path), shown(path, self.folder)
            length = len(next(iter(arrays.values())))
            begin = max(start - row, 0)
            while begin < length:
                end = min(begin + size - (row + begin - start) % size, length)
                yield self._slice(arrays, name, row, begin, end)
                begin = end
            row += length

    def _slice(self, arrays: Mapping[str, Rows], path: str, row: int, begin: int, end: int) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name in (*self.wanted.dtypes, *self.wanted.keys):
            if name in arrays:
                part = arrays[name][begin:end]
                columns[name] = part if part.dtype.isnative else part.astype(part.dtype.newbyteorder("="))
            elif name == "path":
                columns[name] = [path] * (end - begin)
            else:
                columns[name] = list(range(row + begin, row + end))
        return columns

    def _batch(self, pieces: list[dict[str, Column]], start: int, count: int) -> Batch:
        columns = pieces[0] if len(pieces) == 1 else {name: _join([p[name] for p in pieces]) for name in pieces[0]}
        return Batch(start=start, count=count, rows=range(start, start + count), columns=columns, failed=[])


def _join(parts: list[Column]) -> Column:
    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    return np.concatenate(parts)
