"""Opens folders and files by a walk in which every folder is open before the next one is looked up in it.

A path is text, and what it leads to may change between a look and the next call: a folder is exchanged for a link, and
what was inside of the tree is outside. So folders are opened one by one without following links. A link is read and
followed by hand, and in the end a root must be among the folders that are open, whatever their names are. From then on
the last one stays the same folder. On systems that cannot open a folder within another one, what the path leads to is
looked at once.
"""

import errno
import os
from contextlib import contextmanager
from pathlib import Path

from ortdeploy.files.names import is_folder
from ortdeploy.files.opening import regular_path

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    AnyPath = str | os.PathLike[str]

_MOST_LINKS = 40  # as many as the kernel follows
_FOLDER = getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_IS_LINK = frozenset({errno.ENOTDIR, errno.ELOOP})
_DESCRIPTORS = "/proc/self/fd"
_CAN_WALK = hasattr(os, "O_PATH") and is_folder(_DESCRIPTORS)


class LeavesRootsError(OSError):
    """A path leads out of every root, once the links on the way are followed."""

    def __init__(self, path: "AnyPath") -> None:
        why = "a link on the way leads out of the manifest's folder tree. Allow its root with --allow-root"
        super().__init__(errno.EPERM, why, os.fspath(path))


@contextmanager
def held_folder(folder: "AnyPath", roots: "Sequence[str]", *, make: bool = False) -> "Iterator[Path]":
    """Yield a path to a folder that stays this folder, whatever becomes of the names on the way.

    `make`: missing folders are made, durably. Raises OSError; LeavesRootsError if it is below no root.
    """
    if not _CAN_WALK:
        yield _looked_at(folder, roots, make=make)
        return
    with _walk(folder, roots) as walk:
        walk.go(_absolute(folder), make=make)
        walk.require()
        descriptor = walk.take()
    with _named(descriptor, folder) as held:
        yield held


@contextmanager
def held_file(path: "AnyPath", roots: "Sequence[str]") -> "Iterator[Path]":
    """Yield a path to a regular file that stays this file, whatever becomes of its name.

    Raises OSError, which says what else it is; LeavesRootsError if it lies below no root.
    """
    if not _CAN_WALK:
        held = _looked_at(path, roots)
        regular_path(path)
        yield held
        return
    with _walk(path, roots) as walk:
        descriptor = walk.open_file(_absolute(path))
    with _named(descriptor, path) as held:
        regular_path(held)
        yield held


@contextmanager
def _named(descriptor: int, path: "AnyPath") -> "Iterator[Path]":
    """Yield the path of what is open, and close it at the end; errors have the name that it was opened by."""
    held = f"{_DESCRIPTORS}/{descriptor}"
    try:
        yield Path(held)
    except OSError as error:
        name = error.filename
        if isinstance(name, str) and (name == held or name.startswith(f"{held}/")):
            error.filename = f"{os.fspath(path)}{name.removeprefix(held)}"
        raise
    finally:
        os.close(descriptor)


@contextmanager
def _walk(path: "AnyPath", roots: "Sequence[str]") -> "Iterator[_Walk]":
    """Begin a walk; errors on the way name the path as the caller has it."""
    walk = _Walk(path, roots)
    try:
        yield walk
    except OSError as error:
        if error.filename in walk.names or str(error.filename).startswith(f"{_DESCRIPTORS}/"):
            error.filename = os.fspath(path)
        raise
    finally:
        walk.close()


class _Walk:
    """A walk from the root of the file system."""

    def __init__(self, path: "AnyPath", roots: "Sequence[str]") -> None:
        self._path, self._roots = path, roots
        self._open = [os.open("/", _FOLDER)]
        self._links = 0
        self.names: set[str] = set()

    @property
    def here(self) -> int:
        """The descriptor of the folder that was opened last."""
        return self._open[-1]

    def close(self) -> None:
        """Close all folders."""
        for descriptor in self._open:
            os.close(descriptor)

    def take(self) -> int:
        """Return the descriptor of the folder that was opened last, for the caller to close."""
        return self._open.pop()

    def require(self) -> None:
        """Raise LeavesRootsError unless one of the folders that are open is a root."""
        way = {_identity(os.fstat(descriptor)) for descriptor in self._open}
        errors: list[OSError] = []
        for root in self._roots:
            try:
                if _identity(os.stat(root)) in way:  # noqa: PTH116  text
                    return
            except OSError as error:
                errors.append(error)
        raise errors[0] if errors and len(errors) == len(self._roots) else LeavesRootsError(self._path)

    def go(self, path: str, *, make: bool = False) -> None:
        """Go to a path; `make`: missing folders are made. Raises OSError."""
        if path.startswith("/"):
            self._back_to(1)
        for name in path.split("/"):
            if name == "..":
                self._back_to(max(len(self._open) - 1, 1))
            elif name not in {"", "."}:
                self._enter(name, make=make)

    def open_file(self, path: str) -> int:
        """Return the descriptor of a file, in a folder below a root. Raises OSError."""
        folder, _, name = path.rpartition("/")
        self.go(f"{folder}/" if path.startswith("/") else folder)
        if name in {"", ".", ".."}:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        target = self._target(name)
        if target is not None:
            return self.open_file(target)
        self.require()
        regular_path(f"{_DESCRIPTORS}/{self.here}/{name}")  # before it is opened: that alone may do something
        return os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=self.here)

    def _enter(self, name: str, *, make: bool) -> None:
        self.names.add(name)
        if make:
            _make(name, self.here)
        try:
            self._open.append(os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.here))
        except OSError as error:
            target = self._target(name) if error.errno in _IS_LINK else None
            if target is None:
                raise
            self.go(target)  # where a link leads, nothing is made

    def _target(self, name: str) -> str | None:
        """Return where a link leads; None if it is none. Raises OSError."""
        self.names.add(name)
        try:
            target = os.readlink(name, dir_fd=self.here)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return None
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        return target

    def _back_to(self, count: int) -> None:
        while len(self._open) > count:
            os.close(self._open.pop())


def _make(name: str, above: int) -> None:
    """Make a folder in an open one, durably, unless the name is taken."""
    try:
        os.mkdir(name, dir_fd=above)
    except FileExistsError:
        return
    readable = os.open(".", os.O_RDONLY, dir_fd=above)
    try:
        os.fsync(readable)
    finally:
        os.close(readable)


def _identity(found: os.stat_result) -> "tuple[int, int]":
    return found.st_dev, found.st_ino


def _absolute(path: "AnyPath") -> str:
    """Return a full path as text, in which `..` behind a link still means what the system takes it for."""
    return os.path.join(os.getcwd(), os.fspath(path))  # noqa: PTH109, PTH118


def _looked_at(path: "AnyPath", roots: "Sequence[str]", *, make: bool = False) -> Path:
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        raise LeavesRootsError(path)
    if make:
        real.mkdir(parents=True, exist_ok=True)
    return real
