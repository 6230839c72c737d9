"""Reads NumPy's files: headers without the data, arrays in pieces, and whole arrays if they fit into memory."""

import io
import math
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.decoding import decoding
from ortdeploy.files.memory_budget import check_room
from ortdeploy.files.opening import open_regular, regular_path
from ortdeploy.tensors.columns import Array

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
"""Bytes of a header's length, by the format's major version."""
_LONGEST_HEADER = 10_000
"""The largest header that NumPy accepts, in bytes; a header could claim 4 GiB."""


class ArrayHeader(Struct, frozen=True, kw_only=True):
    """Element type and shape of an array from its header, and the position of its data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """The size of the data in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], name: str, most: int) -> ArrayHeader:
    """Read an array's header at the beginning of a stream of `most` bytes.

    Raises OrtdeployError, and errors of numpy for a damaged header.
    """
    start = file.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC:
        raise OrtdeployError(f"{name} is not a .npy file")
    version = start[len(_MAGIC)] if len(start) == len(_MAGIC) + 2 else 0
    if version not in _LENGTH_BYTES:
        raise ValueError("it is of a version that NumPy does not know")
    count = _LENGTH_BYTES[version]
    length = file.read(count)
    size = int.from_bytes(length, "little")
    if size > _LONGEST_HEADER:
        raise ValueError(f"its header has {size:,} bytes, and {_LONGEST_HEADER:,} are possible")
    text = file.read(size)
    read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(io.BytesIO(length + text))
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    header = ArrayHeader(
        shape=tuple(map(int, shape)), dtype=dtype, fortran_order=fortran_order, offset=len(start) + count + size
    )
    if any(axis < 0 for axis in header.shape) or header.offset + header.nbytes > most:
        raise ValueError(f"it says that it holds {header.nbytes:,} bytes of numbers, and has {most - header.offset:,}")
    after = most - header.offset - header.nbytes
    if after:
        raise ValueError(
            f"it holds {after:,} bytes after its array, which would be ignored; save each array in its file"
        )
    return header


class _Readable(Protocol):
    """A stream that reads into a buffer."""

    def readinto(self, target: memoryview, /) -> int | None:
        """Fill a buffer from its beginning, and return the number of bytes."""


def fill(file: _Readable, target: memoryview, name: str) -> None:
    """Fill a buffer from a stream. Raises OrtdeployError if the stream ends too early because the file was cut."""
    while target:
        count = file.readinto(target)
        if not count:
            raise OrtdeployError(f"{name} ends before its last row; did it change while it was read?")
        target = target[count:]


def map_npy(path: Path | str, shown: str | None = None) -> Array:
    """Map the array of a .npy to see its type and shape; text is read. Raises OrtdeployError with the file's name.

    Messages call the file `shown` if that is given. Do not use the mapped data: if the file is cut, touching the map
    ends the process. Read the data instead.
    """
    name = shown or str(path)
    with decoding(name, ".npy"):
        with open_regular(path) as file:
            header = read_header(file, name, Path(path).stat().st_size)
        order: Any = "F" if header.fortran_order else "C"
        if not header.nbytes:
            return np.empty(header.shape, header.dtype, order)
        if header.dtype.kind in "US":  # which is turned into Python's: a map would be touched to its end
            check_room(header.nbytes, name, None)
            return np.asanyarray(np.load(regular_path(path), allow_pickle=False))
        return np.memmap(regular_path(path), header.dtype, "r", header.offset, header.shape, order)
