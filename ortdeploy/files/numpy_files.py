"""Reads NumPy's files: headers without the data, arrays in pieces, and whole arrays if they fit into memory."""

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.decoding import decoding
from ortdeploy.files.room import check_room

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
"""Bytes of a header's length, by the format's major version."""
_LONGEST_HEADER = 10_000
"""The largest header that NumPy accepts, in bytes; a header could claim 4 GiB."""
_SUFFIX = ".npy"
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""The compression methods that NumPy writes; others cannot be read in pieces of limited size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayHeader:
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


class Archive:
    """An open .npz: the headers of its arrays by name, and their data as streams."""

    def __init__(self, zipped: zipfile.ZipFile, name: str) -> None:
        """Read the headers."""
        self._zipped, self._name = zipped, name
        members = [info for info in zipped.infolist() if not info.is_dir()]
        self._members = {_key(info.filename): info for info in members}
        if len(self._members) < len(members):
            names = [_key(info.filename) for info in members]
            raise ValueError(f"it holds {next(name for name in names if names.count(name) > 1)} twice")
        self.headers = {key: self._header(key) for key in self._members}

    def _header(self, key: str) -> ArrayHeader:
        info = self._members[key]
        if info.compress_type not in _METHODS:
            raise ValueError(f"{key} is compressed in a way that NumPy does not write; save it again")
        with self._zipped.open(info) as member:
            return read_header(member, f"{key} of {self._name}", info.file_size)

    def open(self, key: str) -> zipfile.ZipExtFile:
        """Open a stream at the beginning of an array's data."""
        member = cast("zipfile.ZipExtFile", self._zipped.open(self._members[key]))
        member.read(self.headers[key].offset)
        return member

    def load(self, key: str) -> npt.NDArray[Any]:
        """Return a whole array; the caller has checked that it fits into memory."""
        header = self.headers[key]
        with self.open(key) as member:
            numbers = np.empty(math.prod(header.shape), header.dtype)
            if numbers.nbytes:
                fill(member, numbers.view(np.uint8).data, self._name)
        return numbers.reshape(header.shape, order="F" if header.fortran_order else "C")


def _key(filename: str) -> str:
    return filename.removesuffix(_SUFFIX)


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


@contextmanager
def open_npz(path: Path | str, shown: str | None = None) -> Iterator[Archive]:
    """Open a .npz and read its headers. Raises OrtdeployError with the file's name (`shown`, if given).

    Errors in the `with` block stay as they are: reading a stream of the archive raises errors of zipfile and zlib.
    """
    name = shown or str(path)
    with decoding(name, ".npz"):
        file = Path(path).open("rb")  # noqa: SIM115  closed below
    with file:
        with decoding(name, ".npz"):
            archive = Archive(zipfile.ZipFile(file), name)
        yield archive


def read_npz(path: Path | str, shown: str | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a .npz by name. Raises OrtdeployError with the file's name (`shown`, if given)."""
    name = shown or str(path)
    with open_npz(path, shown) as archive:
        check_room(sum(header.nbytes for header in archive.headers.values()), name, None)
        with decoding(name, ".npz"):
            return {key: archive.load(key) for key in archive.headers}


def map_npy(path: Path | str, shown: str | None = None) -> npt.NDArray[Any]:
    """Map the array of a .npy to see its type and shape; text is read. Raises OrtdeployError with the file's name.

    Messages call the file `shown` if that is given. Do not use the mapped data: if the file is cut, touching the map
    ends the process. Read the data instead.
    """
    name = shown or str(path)
    with decoding(name, ".npy"):
        with Path(path).open("rb") as file:
            header = read_header(file, name, Path(path).stat().st_size)
        order: Any = "F" if header.fortran_order else "C"
        if not header.nbytes:
            return np.empty(header.shape, header.dtype, order)
        if header.dtype.kind in "US":  # which is turned into Python's: a map would be touched to its end
            check_room(header.nbytes, name, None)
            return np.asanyarray(np.load(path, allow_pickle=False))
        return np.memmap(path, header.dtype, "r", header.offset, header.shape, order)
