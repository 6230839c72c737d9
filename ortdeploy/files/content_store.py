"""Keeps files by the SHA-256 of their bytes, so that what is opened is what was hashed, even if the original changes.

`files/<digest>` are the bytes, each once; `trees/<digest>` are folders in which some of them have the names by which
they speak of each other. An entry comes by clone where the file system shares blocks (Btrfs, XFS, bcachefs), else by
copy; a link would share changes made in place. It appears whole or not at all, read-only, and is believed only while
its bytes have the digest that it is named by: what is damaged is taken away, and comes again from its source.

`references/` say who needs which entries. Nothing here is trusted: what is a link, or is not named as entries are, is
neither opened nor removed.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ortdeploy.files.atomic import open_whole, sync_folder
from ortdeploy.files.known_digests import DigestCache

FOLDER = "store"

MOST_OF_THE_DISK = 0.5
"""A copy may take this share of what is free; a clone takes nothing."""

FORGOTTEN_AFTER = 30 * 24 * 3600
"""Seconds after which a reference that nobody renews keeps nothing any more."""

_FILES, _TREES, _REFERENCES, _TEMPORARY = "files", "trees", "references", ".partial"
_FORMAT_VERSION = 1
_PIECE = 1024 * 1024
_FICLONE = 0x40049409  # of linux/fs.h
_NO_CLONE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.ETXTBSY}
_READ_ONLY = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_DIGITS = 64


class NotKeptError(Exception):
    """Why a file cannot be kept here: there is too little room for a copy, or a name leads elsewhere."""


class AnotherContentError(Exception):
    """A file does not hold the bytes that it was expected to hold."""


class ContentStore:
    """The files of a state folder by digest. Who opens entries keeps others from pruning meanwhile."""

    def __init__(self, state_dir: Path) -> None:
        """Take the state folder; the store in it is made when something is put into it."""
        self._folder = state_dir / FOLDER
        self._digests = DigestCache(state_dir)

    def put(self, path: Path, expected: str | None = None) -> str:
        """Keep a file's bytes and return their digest. Raises OSError, NotKeptError, AnotherContentError."""
        files = self._made(_FILES)
        temporary = files / f".{os.getpid()}.{time.monotonic_ns()}{_TEMPORARY}"
        try:
            with path.open("rb") as source, temporary.open("xb") as target:
                digest = _take(source, target)
                if expected not in {None, digest}:
                    raise AnotherContentError(str(path))
                target.flush()
                os.fsync(target.fileno())
            temporary.chmod(_READ_ONLY)
            _link(temporary, files / digest)
        finally:
            _remove(temporary)
        sync_folder(files)
        return digest

    def has_room(self, digest: str, size: int) -> bool:
        """Return whether bytes are kept, or a copy of them fits; whether they can be cloned, only `put` tells."""
        if is_digest(digest) and (self._folder / _FILES / digest).is_file():
            return True
        folder = next(one for one in (self._folder, *self._folder.absolute().parents) if one.is_dir())
        return os.access(folder, os.W_OK) and size <= shutil.disk_usage(folder).free * MOST_OF_THE_DISK

    def find(self, digest: str) -> Path | None:
        """Return where the bytes of a digest lie; None if they are not kept, or not whole any more."""
        path = self._folder / _FILES / digest
        if not is_digest(digest) or path.is_symlink() or not self._is_own(_FILES):
            return None
        with suppress(OSError):
            if self._digests.digest(path) == digest:
                return path
            _remove(path)
        return None

    def tree(self, names: Mapping[str, str]) -> Path:
        """Return a folder in which kept files have these names, by digest. Raises OSError, NotKeptError."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(names.items()))
        folder = self._made(_TREES) / hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()
        for name, digest in names.items():
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts:
                raise NotKeptError(f"{name} is no name below a folder")
            _name(self._folder / _FILES / digest, folder / pure, folder)
        return folder

    def refer(self, owner: str, digests: Collection[str]) -> None:
        """Write down that somebody needs these entries, and no others any more. Raises OSError, NotKeptError."""
        path = self._made(_REFERENCES) / f"{hashlib.sha256(owner.encode(errors='surrogateescape')).hexdigest()}.json"
        document = {"format_version": _FORMAT_VERSION, "owner": owner, "digests": sorted(digests)}
        with open_whole(path) as file:
            file.write(json.dumps(document, indent=1).encode())

    def referred(self) -> set[str]:
        """Return the entries that somebody needs."""
        found: set[str] = set()
        for path in self._entries(_REFERENCES):
            with suppress(OSError, ValueError, KeyError, TypeError):
                if path.stat().st_mtime < time.time() - FORGOTTEN_AFTER:
                    path.unlink()
                    continue
                found.update(one for one in json.loads(path.read_bytes())["digests"] if is_digest(one))
        return found

    def prune(self, keep: Collection[str]) -> int:
        """Remove what is not to be kept, and what was begun and left; return how many bytes that gives back."""
        given_back = 0
        for path in self._entries(_FILES):
            if path.name not in keep and (is_digest(path.name) or path.suffix == _TEMPORARY):
                given_back += path.lstat().st_size
                _remove(path)
        for folder in self._entries(_TREES):
            if is_digest(folder.name) and not folder.is_symlink() and any(map(_is_last_name, folder.rglob("*"))):
                shutil.rmtree(folder, ignore_errors=True)
        return given_back

    def _made(self, name: str) -> Path:
        """Return a folder of the store, made where it was not there. Raises OSError, NotKeptError."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if not self._is_own(name):
            raise NotKeptError(f"{folder} is a link, which may lead anywhere")
        return folder

    def _is_own(self, name: str) -> bool:
        return not (self._folder.is_symlink() or (self._folder / name).is_symlink())

    def _entries(self, name: str) -> Iterator[Path]:
        folder = self._folder / name
        yield from list(folder.iterdir()) if folder.is_dir() and self._is_own(name) else ()


def is_digest(text: str) -> bool:
    """Return whether a text can be the name of an entry."""
    return len(text) == _DIGITS and all(sign in "0123456789abcdef" for sign in text)


def _name(kept: Path, named: Path, folder: Path) -> None:
    """Give a kept file a name in a tree, unless it has it. Raises OSError, NotKeptError."""
    if named.exists() and named.samefile(kept) and not named.is_symlink():
        return
    named.parent.mkdir(parents=True, exist_ok=True)
    if not Path(os.path.realpath(named.parent)).is_relative_to(os.path.realpath(folder)):
        raise NotKeptError(f"{named.parent} is a link, which may lead anywhere")
    _remove(named)
    _link(kept, named)


def _link(kept: Path, named: Path) -> None:
    """Give a file another name. Who was quicker has put the same bytes there, which others may have opened already."""
    with suppress(FileExistsError):
        os.link(kept, named)


def _is_last_name(path: Path) -> bool:
    """Return whether an entry is gone, of which a tree has kept a name."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _take(source: BinaryIO, target: BinaryIO) -> str:
    """Clone or copy a file, and return the digest of what was taken. Raises OSError, NotKeptError."""
    if _clone(source, target):
        with Path(target.name).open("rb") as taken:
            return hashlib.file_digest(taken, "sha256").hexdigest()
    size, free = os.fstat(source.fileno()).st_size, shutil.disk_usage(Path(target.name).parent).free
    if size > free * MOST_OF_THE_DISK:
        raise NotKeptError(f"a copy takes {size:,} bytes of {free:,} that are free, which is more than half")
    digest = hashlib.sha256()
    while piece := source.read(_PIECE):
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()


def _clone(source: BinaryIO, target: BinaryIO) -> bool:
    """Let a file share the blocks of another until one of them is written to; return whether that can be."""
    if sys.platform != "linux":
        return False
    import fcntl  # noqa: PLC0415  which Windows does not have

    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
        return False
    return True


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        if os.name == "nt":
            path.chmod(stat.S_IWRITE)
        path.unlink()
