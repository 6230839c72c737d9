"""Keeps files by the SHA-256 of their bytes, so that what is opened is what was hashed, even if the original changes.

`files/<digest>` has the bytes of each file once. `trees/<digest>` are folders in which such files have the names under
which they refer to each other, as a model does to its external data. A file enters by clone if the file system shares
blocks (Btrfs, XFS, bcachefs), else by copy; a hard link to the original would share changes made in place. An entry
appears whole or not at all, is read-only, and is used only while its bytes have the digest in its name: a damaged entry
is removed, and is taken from its source again. `single/<digest>` are folders of files that have one name only, for
readers that take a second one for an attack; these are copies of their own.

`references/` records who needs which entries. Nothing in the folder is trusted: links, and files whose names are no
names of entries, are neither opened nor removed.
"""

import errno
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ortdeploy.files.age import age_of
from ortdeploy.files.atomic import make_durable_folder, open_whole, sync_folder
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.digests import is_digest
from ortdeploy.files.disk import free_at, make_folders, remove_folder
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import open_regular, read_whole
from ortdeploy.shell import command

FOLDER = "store"
LOCK = "store"
"""The name of the lock that runs share, and that `cache prune` holds alone. See `ledger.output_lock`."""

MOST_OF_THE_DISK = 0.5
"""The share of the free space that a copy may take; a clone takes none."""

FORGOTTEN_AFTER = 30 * 24 * 3600
"""Seconds after which a reference that was not renewed has no effect."""

_FILES, _TREES, _SINGLE, _REFERENCES, _TEMPORARY = "files", "trees", "single", "references", ".partial"
_FORMAT_VERSION = 1
_PIECE = 1024 * 1024
_FICLONE = 0x40049409  # of linux/fs.h
_NO_CLONE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.ETXTBSY}
_READ_ONLY = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


Room = Callable[[Path], None]
"""Raises StoreFullError if a folder has no room for a copy; a clone takes none."""


class StoreFullError(Exception):
    """A file cannot be kept or opened: a copy has too little room, a name leads outside of the store, or it is gone."""


class ContentChangedError(Exception):
    """A file does not have the expected content."""


def name_in_tree(path: str) -> str:
    """Return the name that a file has in its tree of a store; any other path as it is."""
    return re.sub(rf"^.*/{_TREES}/[0-9a-f]{{64}}/", "", path)


class ContentStore:
    """The files of a state folder by digest. The caller keeps other processes from pruning while it opens entries."""

    def __init__(self, state_dir: Path) -> None:
        """Take the state folder; the first `put` makes the store in it."""
        self._folder = state_dir / FOLDER
        self._digests = DigestCache(state_dir)

    def put(self, path: Path, expected: str | None = None) -> str:
        """Keep a file's bytes and return their digest. Raises OSError, StoreFullError, ContentChangedError."""
        with open_regular(path) as source:
            return self._put(source, str(path), _readers_of(path), expected, _room(os.fstat(source.fileno()).st_size))

    def take(self, source: BinaryIO, shown: str, expected: str, room: Room) -> None:
        """Keep the bytes of an open file that nobody else may read; `room` decides on a copy, as of `put`.

        Raises OSError, StoreFullError, ContentChangedError.
        """
        self._put(source, shown, stat.S_IRUSR, expected, room)

    def _put(self, source: BinaryIO, shown: str, readers: int, expected: str | None, room: Room) -> str:
        files = self._made(_FILES)
        with _copy(source, shown, readers, files, expected, room) as (temporary, digest):
            _link(temporary, files / digest)
        return digest

    def has_room(self, digest: str, size: int) -> bool:
        """Return whether the bytes are kept, or a copy of `size` bytes fits; only `put` knows if it can clone."""
        if is_digest(digest) and (self._folder / _FILES / digest).is_file():
            return True
        folder = next(one for one in (self._folder, *self._folder.absolute().parents) if one.is_dir())
        return os.access(folder, os.W_OK) and size <= free_at(folder) * MOST_OF_THE_DISK

    def find(self, digest: str) -> Path | None:
        """Return the path of the bytes with a digest; None if they are not kept, damaged, or not ours to read."""
        path = self._folder / _FILES / digest
        if not is_digest(digest) or path.is_symlink() or not self._is_own(_FILES):
            return None
        with suppress(OSError):
            if self._digests.digest(path) == digest:
                return path
            _remove(path)
        return None

    def required(self, digest: str) -> Path:
        """Return the path of the bytes with a digest. Raises StoreFullError if they are gone, OSError."""
        found = self.find(digest)
        if found is not None:
            return found
        path = self._folder / _FILES / digest
        if hasattr(os, "geteuid") and path.exists() and not os.access(path, os.R_OK):
            whose, ours = user_name(path.stat().st_uid), user_name(os.geteuid())
            why = (
                f"{path} belongs to {whose}, and {ours} may not read it. Run ortdeploy as {whose}, or give what was "
                f"brought in to {ours}: {command('chown', '-R', ours, str(self._folder.parent))}"
            )
            raise PermissionError(errno.EACCES, why)
        raise StoreFullError(f"{digest[:12]}… is gone from the store")

    def tree(self, names: Mapping[str, str]) -> Path:
        """Return a folder in which kept files have these names (name to digest). Raises OSError, StoreFullError."""
        folder = self._made(_TREES) / digest_of_names(names)
        for name, digest in names.items():
            _name(self._folder / _FILES / digest, folder / _below(name), folder)
        return folder

    def single(self, names: Mapping[str, str], sources: Mapping[str, Path]) -> Path:
        """Return a folder in which copies of files have these names (name to digest), and no others.

        The copies come from the `sources`, unless they are there from before. Raises OSError, StoreFullError,
        ContentChangedError.
        """
        folder = self._made(_SINGLE) / digest_of_names(names)
        for name, digest in names.items():
            named = folder / _below(name)
            named.parent.mkdir(parents=True, exist_ok=True)
            _require_below(named.parent, folder)
            if not self._is_single(named, digest):
                self._put_single(sources[name], named, digest)
        return folder

    def _put_single(self, path: Path, named: Path, digest: str) -> None:
        with open_regular(path) as source:
            room = _room(os.fstat(source.fileno()).st_size)
            with _copy(source, str(path), _readers_of(path), named.parent, digest, room) as (temporary, _):
                if not self._is_single(named, digest):  # another process may have been quicker, and has it open
                    _remove(named)
                    temporary.replace(named)

    def _is_single(self, path: Path, digest: str) -> bool:
        """Return whether a file has these bytes and one name."""
        try:
            status = path.lstat()
            return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and self._digests.digest(path) == digest
        except OSError:
            return False

    def refer(self, owner: str, digests: Collection[str], *, lasting: bool = False) -> None:
        """Record that an owner needs these entries, and no others that it named before. Raises OSError, StoreFullError.

        `lasting`: the reference holds until the owner changes it; otherwise the owner must renew it. Renewing takes no
        writing, so the disk is not waited for.
        """
        path = self._reference(owner)
        document = {"format_version": _FORMAT_VERSION, "owner": owner, "digests": sorted(digests), "lasting": lasting}
        with suppress(OSError, ValueError):
            if read_json(read_whole(path)) == document:
                if not lasting:
                    os.utime(path)
                return
        with open_whole(path) as file:
            file.write(json.dumps(document).encode())

    def release(self, owner: str) -> None:
        """Record that an owner needs nothing any more. Raises OSError, StoreFullError."""
        self._reference(owner).unlink(missing_ok=True)

    def _reference(self, owner: str) -> Path:
        name = hashlib.sha256(owner.encode(errors="surrogateescape")).hexdigest()
        return self._made(_REFERENCES) / f"{name}.json"

    def referred(self, is_there: Callable[[str], bool] = lambda _owner: True, *, dry_run: bool = False) -> set[str]:
        """Return the digests of all entries that an owner needs.

        Delete references that were not renewed, and those whose owner is not there; `dry_run`: delete nothing.
        """
        found: set[str] = set()
        for path, owner, digests, is_lasting in self._read_references():
            with suppress(OSError):
                age = age_of(path.stat().st_mtime, time.time())
                is_old = not is_lasting and age is not None and age > FORGOTTEN_AFTER
                if not is_old and is_there(owner):
                    found |= digests
                elif not dry_run:
                    path.unlink()
        return found

    def owners(self) -> dict[str, set[str]]:
        """Return the digests that each owner needs."""
        return {owner: digests for _, owner, digests, _ in self._read_references()}

    def _read_references(self) -> Iterator[tuple[Path, str, set[str], bool]]:
        """Yield the path, owner and digests of each reference that can be read, and whether it is lasting."""
        for path in self._entries(_REFERENCES):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                known = read_json(read_whole(path))
                digests = {one for one in known["digests"] if is_digest(one)}
                yield path, str(known["owner"]), digests, bool(known.get("lasting"))

    def prune(self, keep: Collection[str]) -> int:
        """Remove all entries but those to keep, and unfinished ones; return the number of bytes freed."""
        given_back = 0
        for folder in self._entries(_SINGLE):
            for unfinished in folder.rglob(f".*{_TEMPORARY}") if is_digest(folder.name) else ():
                _remove(unfinished)
        for path, size in self.sizes().items():
            if path.name not in keep:
                given_back += size
                remove_folder(path) if path.parent.name == _SINGLE else _remove(path)
        for folder in self._entries(_TREES):
            if is_digest(folder.name) and not folder.is_symlink() and any(map(_is_last_name, folder.rglob("*"))):
                remove_folder(folder)
        return given_back

    def sizes(self) -> dict[Path, int]:
        """Return the sizes in bytes of all entries, and of unfinished ones."""
        own = (one for one in self._entries(_FILES) if is_digest(one.name) or one.suffix == _TEMPORARY)
        single = (one for one in self._entries(_SINGLE) if is_digest(one.name) and not one.is_symlink())
        return {path: path.lstat().st_size for path in own} | {
            folder: sum(one.lstat().st_size for one in folder.rglob("*") if not one.is_dir()) for folder in single
        }

    def _made(self, name: str) -> Path:
        """Return a folder of the store, and make it if it is missing. Raises OSError, StoreFullError."""
        folder = self._folder / name
        make_durable_folder(folder)
        if not self._is_own(name):
            raise StoreFullError(f"{folder} is a link, which may lead anywhere")
        return folder

    def _is_own(self, name: str) -> bool:
        return not (self._folder.is_symlink() or (self._folder / name).is_symlink())

    def _entries(self, name: str) -> Iterator[Path]:
        folder = self._folder / name
        yield from list(folder.iterdir()) if folder.is_dir() and self._is_own(name) else ()


def user_name(number: int) -> str:
    """Return the name of a user of this system, or the number if it has none."""
    try:
        import pwd  # noqa: PLC0415  which Windows does not have

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"{number}"


def digest_of_names(names: Mapping[str, str]) -> str:
    """Return the digest of names with the digests of their files, which is the name of the folder that has them."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(names.items()))
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def _below(name: str) -> PurePosixPath:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise StoreFullError(f"{name} is no name below a folder")
    return pure


def _require_below(path: Path, folder: Path) -> None:
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise StoreFullError(f"{path} is a link, which may lead anywhere")


@contextmanager
def _copy(
    source: BinaryIO, shown: str, readers: int, folder: Path, expected: str | None, room: Room
) -> Iterator[tuple[Path, str]]:
    """Yield a durable copy under a temporary name, which is gone at the end, and its digest.

    Raises OSError, StoreFullError, ContentChangedError.
    """
    temporary = folder / f".{os.getpid()}.{time.monotonic_ns()}{_TEMPORARY}"
    try:
        with open(temporary, "xb", opener=_only_ours) as target:
            digest = _take(source, target, room)
            if expected not in {None, digest}:
                raise ContentChangedError(shown)
            target.flush()
            os.fsync(target.fileno())
        temporary.chmod(readers)
        yield temporary, digest
    finally:
        _remove(temporary)
    sync_folder(folder)


def _name(kept: Path, named: Path, folder: Path) -> None:
    """Give a kept file a name in a tree, unless it has that name already. Raises OSError, StoreFullError."""
    if named.exists() and named.samefile(kept) and not named.is_symlink():
        return
    make_folders(named.parent)
    _require_below(named.parent, folder)
    _remove(named)
    _link(kept, named)


def _link(kept: Path, named: Path) -> None:
    """Give a file another name; an existing name stays, as it has the same bytes and may be open elsewhere."""
    with suppress(FileExistsError):
        os.link(kept, named)


def _is_last_name(path: Path) -> bool:
    """Return whether a name in a tree is the last one of a file whose entry is gone."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _only_ours(path: str, flags: int) -> int:
    """Open a new file that nobody else may read before it has its rights."""
    return os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR)


def _readers_of(path: Path) -> int:
    """Return the rights of a copy: to read only, for whoever may read the original; a manifest may hold secrets."""
    return stat.S_IMODE(path.stat().st_mode) & _READ_ONLY | stat.S_IRUSR


def _take(source: BinaryIO, target: BinaryIO, room: Room) -> str:
    """Clone or copy a file, and return the digest of the new one. Raises OSError, StoreFullError."""
    if _clone(source, target):
        with open_regular(target.name) as taken:
            return hashlib.file_digest(taken, "sha256").hexdigest()
    room(Path(target.name).parent)
    digest = hashlib.sha256()
    while piece := source.read(_PIECE):
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()


def _room(size: int) -> Room:
    """Return what refuses a copy of a size that takes more than its share of the disk."""

    def check(folder: Path) -> None:
        free = free_at(folder)
        if size > free * MOST_OF_THE_DISK:
            raise StoreFullError(f"a copy takes {size:,} bytes of {free:,} that are free, which is more than half")

    return check


def _clone(source: BinaryIO, target: BinaryIO) -> bool:
    """Let a file share the blocks of another until one of them changes; return False if the system cannot do that."""
    if sys.platform != "linux" or not _has_number(source):
        return False
    import fcntl  # noqa: PLC0415  which Windows does not have

    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
        return False
    return True


def _has_number(file: BinaryIO) -> bool:
    """Return whether a file is one of the system, and not a part of another one."""
    try:
        return file.fileno() >= 0
    except OSError:
        return False


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        if os.name == "nt":
            path.chmod(stat.S_IWRITE)
        path.unlink()
