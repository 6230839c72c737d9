"""Reads and writes .npz files: archives of arrays, of which one is loaded at a time."""

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from ortdeploy.files.decoding import decoding
from ortdeploy.files.memory_budget import check_room
from ortdeploy.files.numpy_files import ArrayHeader, fill, read_header
from ortdeploy.files.opening import open_regular

_SUFFIX = ".npy"
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""The compression methods that NumPy writes; others cannot be read in pieces of limited size."""


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


@contextmanager
def open_npz(path: Path | str, shown: str | None = None) -> Iterator[Archive]:
    """Open a .npz and read its headers. Raises OrtdeployError with the file's name (`shown`, if given).

    Errors in the `with` block stay as they are: reading a stream of the archive raises errors of zipfile and zlib.
    """
    name = shown or str(path)
    with decoding(name, ".npz"):
        file = open_regular(path)
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


def write_npz(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays of any names, without pickle: `numpy.savez` has parameters, and takes no array of their names."""
    with zipfile.ZipFile(file, "w") as zipped:
        for name, array in arrays.items():
            with zipped.open(zipfile.ZipInfo(f"{name}{_SUFFIX}"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
