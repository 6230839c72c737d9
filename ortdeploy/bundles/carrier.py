"""The two carriers of an OCI image layout: a folder, and a tar archive that is read where it lies, never unpacked.

Only what has a name of a layout is seen: `oci-layout`, `index.json` and `blobs/sha256/<digest>`. A stranger wrote it:
links are not followed, nothing is read whole that is not bounded, and of a tar each member is there once.
"""

import io
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from ortdeploy.bundles.description import shown
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.names import is_folder
from ortdeploy.files.opening import open_regular

INDEX, MARK = "index.json", "oci-layout"
_BLOCK = 512
_MOST_MEMBERS = 30_000
_LARGEST_RECORD = 1024 * 1024
_OWN = re.compile(r"index\.json|oci-layout|blobs/sha256/[0-9a-f]{64}")
_USTAR_FROM = 8 * 1024**3
"""The first size that the field of a plain tar header cannot hold."""


def blob(digest: str) -> str:
    """Return the name of the bytes with a SHA-256."""
    return f"blobs/sha256/{digest}"


class Carrier(Protocol):
    """An opened layout."""

    def size(self, name: str) -> int | None:
        """Return the size of what has a name, None if nothing has."""

    def opened(self, name: str) -> BinaryIO:
        """Open what has a name. Raises OSError, OrtdeployError."""


@contextmanager
def open_carrier(path: Path) -> Iterator[Carrier]:
    """Open a layout. Raises OSError, OrtdeployError."""
    if is_folder(path):
        yield _Folder(path)
        return
    with open_regular(path) as file:
        yield _Tar(file)


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def size(self, name: str) -> int | None:
        try:
            found = self._plain(name).lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise OrtdeployError(f"{name} is not a regular file")
        return found.st_size

    def opened(self, name: str) -> BinaryIO:
        return open_regular(self._plain(name))

    def _plain(self, name: str) -> Path:
        """Return the path of a name; a link on the way may lead anywhere. Raises OSError, OrtdeployError."""
        path = self._path
        for part in name.split("/"):
            path /= part
            if stat.S_ISLNK(path.lstat().st_mode):
                raise OrtdeployError(f"{name} is a link, which may lead anywhere")
        return path


class _Tar:
    """Members of a tar archive by name, with their places in it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members: dict[str, tuple[int, int]] = {}
        end = file.seek(0, os.SEEK_END)
        for name, start, size in _members(file):
            if start + size > end:
                raise OrtdeployError(f"the archive ends within {shown(name)}: the copy was cut off. Copy it again")
            if _OWN.fullmatch(name):
                if name in self._members:
                    raise OrtdeployError(f"the archive has {name} twice")
                self._members[name] = start, size

    def size(self, name: str) -> int | None:
        return self._members[name][1] if name in self._members else None

    def opened(self, name: str) -> BinaryIO:
        return io.BufferedReader(_Range(self._file, *self._members[name]), buffer_size=_LARGEST_RECORD)


class _Range(io.RawIOBase):
    """A part of a file, read without a copy."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._at, self._end = file, start, start + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        self._file.seek(self._at)
        piece = self._file.read(min(len(buffer), self._end - self._at))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def _members(file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yield the name, start and size of each regular member. Raises OSError, OrtdeployError."""
    at, extra, count = 0, {}, 0
    while True:
        file.seek(at)
        header = file.read(_BLOCK)
        if header == bytes(_BLOCK):
            return
        count += 1
        if count > _MOST_MEMBERS:
            raise OrtdeployError(f"the archive has more than {_MOST_MEMBERS:,} members")
        name, kind, size = _parse(header)
        start = at + _BLOCK
        at = start + -(-size // _BLOCK) * _BLOCK
        if kind == b"x":
            extra = _records(file, size)
            continue
        if kind == b"g":
            continue
        name, size = str(extra.get("path", name)), int(extra.get("size", size))
        at = start + -(-size // _BLOCK) * _BLOCK
        extra = {}
        if kind not in {b"0", b"\0", b"5"}:
            raise OrtdeployError(f"{shown(name)} is no regular member of the archive")
        if kind != b"5":
            yield name.removeprefix("./"), start, size


def _parse(header: bytes) -> tuple[str, bytes, int]:
    """Return the name, kind and size in a header. Raises OrtdeployError."""
    if len(header) < _BLOCK:
        raise OrtdeployError("the archive has no end: the copy was cut off. Copy it again")
    try:
        total = int(header[148:156].split(b"\0")[0].strip() or b"-1", 8)
        field = header[124:136]
        size = int.from_bytes(field[1:]) if field[0] == 0x80 else int(field.split(b"\0")[0].strip() or b"0", 8)  # noqa: PLR2004  of GNU
        name = header[:100].split(b"\0")[0].decode()
    except ValueError as error:
        raise OrtdeployError("the archive has a damaged header") from error
    if total != sum(header[:148]) + 8 * 32 + sum(header[156:]) or size < 0:
        raise OrtdeployError("the archive has a damaged header")
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (f"{prefix.decode(errors='replace')}/{name}" if prefix else name), header[156:157], size


def _records(file: BinaryIO, size: int) -> dict[str, str | int]:
    """Return name and size in an extended header. Raises OrtdeployError."""
    if size > _LARGEST_RECORD:
        raise OrtdeployError("the archive has too large a header")
    raw, at, found = file.read(size), 0, dict[str, str | int]()
    try:
        while at < len(raw):
            blank = raw.index(b" ", at, at + 20)
            end = at + int(raw[at:blank])
            key, equals, value = raw[blank + 1 : end].removesuffix(b"\n").partition(b"=")
            if end <= blank or not equals:
                raise OrtdeployError("the archive has a damaged header")
            if key in {b"path", b"size"}:
                found[key.decode()] = int(value) if key == b"size" else value.decode()
            if key.startswith(b"GNU.sparse"):
                raise OrtdeployError("the archive has a sparse member")
            at = end
    except ValueError as error:
        raise OrtdeployError("the archive has a damaged header") from error
    if int(found.get("size", 0)) < 0:
        raise OrtdeployError("the archive has a damaged header")
    return found


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a member: the same bytes on every machine; from 8 GiB on, an extended one says the size."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, 0
    return info.tobuf(tarfile.PAX_FORMAT if size >= _USTAR_FROM else tarfile.USTAR_FORMAT)


def tar_padding(size: int) -> bytes:
    """Return the zeros behind a member of a size."""
    return bytes(-size % _BLOCK)


TAR_END = bytes(2 * _BLOCK)
