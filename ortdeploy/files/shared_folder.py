"""A folder that many processes write into, on a local file system or on NFS. Hard links decide who is first.

Whatever is not there is looked for once more, after its folder was opened: see `open_anew`.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import Written, make_durable_folder, open_whole, sync_folder
from ortdeploy.files.digests import file_digest
from ortdeploy.files.disk import remove_folder
from ortdeploy.files.exclusive_create import check_decides, create_only
from ortdeploy.files.names import open_anew
from ortdeploy.files.opening import copy_into, read_whole
from ortdeploy.files.shared_place import beside
from ortdeploy.files.walk import held_file, held_folder

T = TypeVar("T")

_STILL_OPEN = ".nfs"
"""How NFS calls a deleted file that a process of the same machine still has open; it goes when that is closed."""


class SharedFolder:
    """A folder as a `SharedPlace`."""

    def __init__(self, folder: Path, roots: Sequence[str] = ()) -> None:
        """Take the folder; nothing is touched yet. Links in it may lead elsewhere in it, or below the `roots`."""
        self._folder = folder
        self._allowed = (str(folder), *roots)
        self._sizes: dict[str, int] = {}

    @property
    def shown(self) -> str:
        """Return its path."""
        return str(self._folder)

    @property
    def at_once(self) -> int:
        """Return 1."""
        return 1

    def make(self, folder: str) -> None:
        """Make a folder in it, and refuse a file system that cannot decide; then nothing of it is left."""
        make_durable_folder(self._folder)
        with held_folder(self._folder / folder, self._allowed, make=True) as held:
            try:
                check_decides(held, str(self._folder / folder))
            except (OrtdeployError, OSError):
                self.unmake(folder)  # else plans would find shards that are not finished
                self.unmake(os.path.dirname(folder))  # noqa: PTH120  text
                raise

    def unmake(self, folder: str) -> None:
        """Delete a folder if it is empty."""
        with suppress(OSError), self._held(folder) as path:
            path.rmdir()

    def create(self, name: str, data: bytes) -> bool:
        """Create a file by a link, which fails if the name exists."""
        with self._held(name) as path:
            return create_only(path, data)

    def put(self, path: Path, name: str) -> None:
        """Copy the file."""
        with self._held(name) as there, open_whole(there) as file:
            copy_into(file, path)

    def read(self, name: str) -> bytes | None:
        """Ask for the file by its name, because a listing may be old on NFS."""
        try:
            return self._asked(name, lambda: self._ask(name, _bytes_of))
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Yield its path."""
        with self._held(name) as path:
            yield path

    def exists(self, name: str) -> bool:
        """Return whether there is a file."""
        try:
            self._asked(name, lambda: self._ask(name, Path.stat))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, folder: str) -> Iterator[str]:
        """Yield what is in a folder."""
        try:
            found = self._asked(folder, lambda: self._scanned(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        with found:
            yield from (entry.name for entry in found if not entry.name.startswith(_STILL_OPEN))

    def look(self, folder: str, files: Collection[str]) -> Mapping[str, frozenset[str]]:
        """Ask for each file by its name, because a listing may be old on NFS."""
        found = {}
        for name in self.names(folder):
            held = [file for file in files if self.exists(f"{folder}/{name}/{file}")]
            found[name] = frozenset((*held, *self.names(f"{folder}/{name}")) if held else ())
        return found

    def times(self, folder: str, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the times of files; one that goes meanwhile has none."""
        for name in self.names(folder):
            if name.startswith(prefix):
                with suppress(OSError), self._held(f"{folder}/{name}") as path:
                    yield name, path.stat().st_mtime

    def delete(self, name: str) -> None:
        """Delete a file, unless somebody else has."""
        with suppress(FileNotFoundError), self._held(name) as path:
            path.unlink(missing_ok=True)

    def clear(self, folder: str, keep: Collection[str] = ()) -> None:
        """Delete what is in a folder; what others delete meanwhile, or have open on NFS, is passed over."""
        for name in set(self.names(folder)) - set(keep):
            with suppress(FileNotFoundError), self._held(f"{folder}/{name}") as path:
                if path.is_dir() and not path.is_symlink():
                    remove_folder(path)
                else:
                    path.unlink(missing_ok=True)
        if not keep:
            self.unmake(folder)  # which stays if NFS keeps files in it that are still open

    @contextmanager
    def staging(self, name: str) -> Iterator[Path]:
        """Yield the hidden path itself: what is written there is staged by a sync of its folder."""
        with self._held(name) as path:
            try:
                yield path
            except BaseException:
                path.unlink(missing_ok=True)
                remove_folder(beside(path))
                raise

    def stage(self, path: Path, name: str) -> tuple[str, ...]:  # noqa: ARG002  it has the name already
        """Make the names durable; the bytes are."""
        if not path.exists():  # no row gave a result
            remove_folder(beside(path))
        if beside(path).is_dir():
            for folder, _, _ in os.walk(beside(path)):
                sync_folder(Path(folder))
        sync_folder(path.parent)
        return ()

    def publish(self, name: str, final: str) -> bool:
        """Rename a staged file. If another process was quicker, or NFS lost an answer, none is left to rename."""
        make_durable_folder(self._folder)
        with ExitStack() as stack:
            try:
                staged, place = stack.enter_context(self._held(name)), stack.enter_context(self._held(final, make=True))
                staged.rename(place)
            except FileNotFoundError:
                return False
            sync_folder(place.parent)
            sync_folder(staged.parent)
        return True

    def holds(self, name: str, written: Written, marks: tuple[str, ...]) -> bool:  # noqa: ARG002  stores have marks
        """Compare size and time, or the bytes: a copy has another time."""
        stat = self._asked(name, lambda: self._ask(name, Path.stat))
        if stat.st_size != written.bytes:
            return False
        return stat.st_mtime_ns == written.mtime_ns or self._ask(name, file_digest) == written.sha256

    def taken(self, prefix: str) -> int:
        """Add up sizes of files. Only those that are new are asked for: what is published does not change."""
        names = [name for name in self.names("") if name.startswith(prefix)]
        sizes = ((name, self._sizes.get(name) or self._size(name)) for name in names)
        self._sizes = {name: size for name, size in sizes if size is not None}
        return sum(self._sizes.values())

    def _size(self, name: str) -> int | None:
        with suppress(FileNotFoundError):  # it was carried away since it was listed
            return (self._folder / name).stat().st_size
        return None

    @contextmanager
    def reports(self) -> Iterator[Path]:
        """Yield the folder itself: reports are renamed when they are whole."""
        yield self._folder

    def _asked(self, name: str, ask: Callable[[], T]) -> T:
        """Return what `ask` returns of a name; if it is not there, open its folder and ask again. Raises OSError."""
        try:
            return ask()
        except FileNotFoundError:
            if not open_anew((self._folder / name).parent):
                raise
        return ask()

    def _ask(self, name: str, ask: Callable[[Path], T]) -> T:
        """Return what `ask` returns for a file, or for that to which a link leads. Raises OSError."""
        with self._held(name) as path:
            if not path.is_symlink():
                return ask(path)
        with held_file(self._folder / name, self._allowed) as path:
            return ask(path)

    def _scanned(self, folder: str) -> Any:
        with held_folder(self._folder / folder, self._allowed) as held:
            return os.scandir(held)

    @contextmanager
    def _held(self, name: str, *, make: bool = False) -> Iterator[Path]:
        """Yield a path to what has a name, in a folder that stays the same folder; `make`: it is made if missing.

        Raises OSError, also if a link on the way leads out of what is allowed.
        """
        folder, _, last = name.rpartition("/")
        with held_folder(self._folder / folder, self._allowed, make=make) as held:
            yield held / last


def _bytes_of(path: Path) -> bytes:
    """Return the bytes of a file that others may delete meanwhile, which NFS calls a stale handle. Raises OSError."""
    try:
        return read_whole(path)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return read_whole(path)
