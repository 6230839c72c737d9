"""Rows of arrays over several files; shared by .npy, .npz, .pb and raw tensors. Slices of arrays are not copied."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.files.memory_budget import allowed, room
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, Block
from ortdeploy.sources.files import shown
from ortdeploy.sources.joined import JoinedFiles
from ortdeploy.sources.protocol import Wanted, wanted_blocks
from ortdeploy.tensors.arrow_types import result_type_name
from ortdeploy.tensors.carried import TEXT
from ortdeploy.tensors.columns import Array, Column, constant, join
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import ELEMENT_TYPES, FLOATING, INTEGERS, ROWS, TensorType
from ortdeploy.units import format_size

COLUMN = "array"
"""The name of the one column of files that hold one array."""

_KINDS_OF_TEXT = "US"


class ArraysError(OrtdeployError):
    """A file does not hold arrays of rows."""


class Typed(Protocol):
    """Anything with a shape and an element type: an array, or its header."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type in the file."""


class Rows(Typed, Protocol):
    """Rows that can be sliced: an array [rows, …], or an object that reads them from a file."""

    def __getitem__(self, rows: slice, /) -> Array:
        """Return some rows."""


def check_rows(array: Typed, name: str) -> None:
    """Raise ArraysError if an array has no axis of rows, or an element type that no model input has."""
    if not array.shape:
        raise ArraysError(f"{name} is a single value, not rows")
    if _element_type(array) not in ELEMENT_TYPES:
        raise ArraysError(f"{name} has the element type {array.dtype}, which no model input has")


def tensor_type(array: Typed) -> TensorType:
    """Return the type of the rows of an array [rows, …]."""
    return TensorType(_element_type(array), (ROWS, *array.shape[1:]))


def _element_type(array: Typed) -> str:
    is_text = array.dtype.kind in _KINDS_OF_TEXT or array.dtype == object
    return "string" if is_text else array.dtype.newbyteorder("=").name


def _converted(rows: Array, what: str) -> Array:
    """Return rows in native byte order, text as Python's strings. Raises ArraysError for booleans that are none.

    numpy takes every byte but 0 for true, and kernels take it for what it is: 255 is not equal to true.
    """
    if rows.dtype == np.bool_ and rows.size and (largest := int(rows.view(np.uint8).max())) > 1:
        raise ArraysError(f"{what} has a byte of {largest}, and booleans are 0 or 1; read or write it as uint8")
    if rows.dtype.kind in _KINDS_OF_TEXT:
        return convert(rows, "string")
    return rows if rows.dtype.isnative else convert(rows, rows.dtype.newbyteorder("=").name)


def probe_arrays(files: Sequence[str], facts: InputFacts, look: Callable[[str], Typed]) -> InputFacts:
    """Probe files of one array each; all must hold rows of one shape, and of types that another one holds."""
    rows = 0
    joined = JoinedFiles(joint_tensor_type, str)
    for path in files:
        array = look(path)
        joined.add(path, [(COLUMN, tensor_type(array))])
        rows += array.shape[0]
    return replace(with_columns(facts, joined), rows=rows)


def joint_tensor_type(one: TensorType, other: TensorType) -> TensorType | None:
    """Return the type that holds the rows of both: whole numbers become wider or floating; None if none does.

    int64 stands for int64 beside uint64, as in pyarrow; a row with a larger number fails.
    """
    if one.shape != other.shape or one.dtype is None or other.dtype is None:
        return None
    if one.dtype == other.dtype:
        return one
    dtypes = {one.dtype, other.dtype}
    if not dtypes <= {*INTEGERS, *FLOATING}:
        return None
    joint = str(np.result_type(one.dtype, other.dtype))
    return replace(one, dtype="int64" if dtypes <= {*INTEGERS} and joint in FLOATING else joint)


def with_columns(facts: InputFacts, joined: JoinedFiles) -> InputFacts:
    """Return the facts with the columns of arrays, and what they are carried as."""
    known = {name: kind for name, kind in joined.columns.items() if kind is not None}
    types = {name: result_type_name(kind.dtype, kind.shape[1:]) for name, kind in known.items()}
    texts = {
        name: TEXT
        for name in joined.columns.keys() - known.keys()
        if all(kind.shape == (ROWS,) for kind in joined.kinds(name))
    }
    columns = {name: TensorType() if kind is None else kind for name, kind in joined.columns.items()}
    return joined.completed(facts, columns, types | texts)


class ArraySource(Struct, frozen=True):
    """Blocks over files whose arrays `load` returns by column name."""

    files: Sequence[str]
    folder: str
    wanted: Wanted
    load: Callable[[str], Mapping[str, Rows]]

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield blocks that run across file borders."""
        if self.wanted.only is None:
            return self._blocks(start, sizes)
        return wanted_blocks(self._blocks, self.wanted.only, sizes)

    def _blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        row = start
        pieces = _Pieces(self, start - self.wanted.first_row)
        for size in sizes:
            columns = pieces.take(size)
            if columns is None:
                return
            count = len(next(iter(columns.values())))
            yield Block(start=row, count=count, rows=range(row, row + count), columns=columns, failed=[])
            row += count

    def columns(self, arrays: Mapping[str, Rows], path: str, row: int, begin: int, end: int) -> dict[str, Column]:
        """Return the wanted columns [rows, …] of some rows of a file, whose first row has the number `row`."""
        columns: dict[str, Column] = {}
        for name in dict.fromkeys((*self.wanted.dtypes, *self.wanted.keys)):
            if name in arrays:
                columns[name] = _converted(arrays[name][begin:end], f"{name} of {path}")
            elif name in {"path", FILE_PATH}:
                columns[name] = constant(path, end - begin)
            elif name == FILE_ROW:
                columns[name] = np.arange(begin, end)
            else:
                columns[name] = np.arange(row + begin, row + end)
        return columns


class _Pieces:
    """The place in the files of the next rows."""

    def __init__(self, source: ArraySource, start: int) -> None:
        self._source = source
        self._files = iter(source.files)
        self._skip = start
        self._arrays: Mapping[str, Rows] = {}
        self._path = ""
        self._begin = self._length = 0
        self._first = source.wanted.first_row
        self._room = room(source.wanted.memory_limit)

    def take(self, size: int) -> dict[str, Column] | None:
        """Return the columns [rows, …] of the next rows; None at the end."""
        pieces: list[dict[str, Column]] = []
        while size and self._find():
            end = min(self._begin + size, self._length)
            self._check_room(end - self._begin)
            pieces.append(self._source.columns(self._arrays, self._path, self._first, self._begin, end))
            size -= end - self._begin
            self._begin = end
        if len(pieces) > 1:
            return {name: join([piece[name] for piece in pieces]) for name in pieces[0]}
        return pieces[0] if pieces else None

    def _check_room(self, rows: int) -> None:
        """Raise ArraysError if the next rows need more memory than there is."""
        wanted = self._source.wanted
        asked = [self._arrays[name] for name in {*wanted.dtypes, *wanted.keys} if name in self._arrays]
        size = sum(rows * math.prod(array.shape[1:]) * array.dtype.itemsize for array in asked)
        if size > self._room:
            what = f"{rows} rows of {self._path} take {format_size(size)} of memory"
            raise ArraysError(f"{what}, and {allowed(self._room, wanted.memory_limit)}")

    def _find(self) -> bool:
        """Go to the file that holds the next row; return whether there is one."""
        while self._begin >= self._length:
            path = next(self._files, None)
            if path is None:
                return False
            self._first += self._length
            self._arrays, self._path = self._source.load(path), shown(path, self._source.folder)
            self._length = next(iter(self._arrays.values())).shape[0]
            self._begin = min(self._skip, self._length)
            self._skip -= self._begin
        return True
