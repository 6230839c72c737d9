"""A folder on an object store that many processes write into. A put that must create the object decides who is first.

Nothing is kept on the local disk but the one file that is uploaded. An answer may be lost although the request was
carried out: so whoever is told that an object exists compares it with his own bytes.
"""

import base64
import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.files.atomic import Written
from ortdeploy.files.gate import SCHEMES, Use, admit
from ortdeploy.files.object_store import in_words, open_store
from ortdeploy.files.opening import open_regular
from ortdeploy.files.shared_place import beside, beside_name
from ortdeploy.retries import persist, status_of

T = TypeVar("T")

_PIECE = 1024 * 1024
_AT_ONCE = 16
_PUTS_AGAIN = 4
"""How often a put that decides is repeated, whatever the job says: the part is made already."""
_TIMES = ("LastModified", "last_modified", "mtime", "created")
"""The names that packages of stores have for the time of an object."""
_DEFINITE = (FileNotFoundError, FileExistsError, PermissionError, ConnectionError, TimeoutError)
"""Errors of the system that a store means, or after which its package has tried again by itself."""


class SharedStore:
    """A folder on an object store as a `SharedPlace`."""

    def __init__(self, url: str) -> None:
        """Take the URL; nothing is read yet. Raises OrtdeployError for a URL that cannot be written to."""
        self._url = admit(url.rstrip("/"), Use.WRITE)

    @property
    def shown(self) -> str:
        """Return the URL without secrets."""
        return self._url.shown

    @property
    def at_once(self) -> int:
        """Return a number far below what a store takes from one client."""
        return _AT_ONCE

    def make(self, folder: str) -> None:
        """Refuse a store that lets two processes create the same object; a store has no folders to make."""
        probe = f"{folder}/.probe-{uuid4().hex}"
        try:
            decides = self.create(probe, b"first") and not self.create(probe, b"second")
        finally:
            with suppress(OrtdeployError):
                self.delete(probe)
        if not decides:
            package = SCHEMES[self._url.scheme].package
            raise RefusedError(
                f"{self._url} lets two processes create the same object: a second put replaced the first one, although "
                "it was to create the object (If-None-Match). So shards cannot decide there who writes a part. Update "
                f"the store or {package}, or choose another store, or a folder"
            )

    def unmake(self, folder: str) -> None:
        """Do nothing: a store has no folders."""

    def create(self, name: str, data: bytes) -> bool:
        """Put an object that must not exist. If it does and has these bytes, an answer was lost.

        A store may refuse a put because another one is under way (409); the next attempt tells.
        """

        def put(system: Any, path: str) -> bool:
            try:
                system.pipe_file(path, data, mode="create")
            except OSError as error:
                if isinstance(error, FileExistsError) or _is_refused(error):
                    return False
                raise
            return True

        def passes(error: BaseException) -> bool:
            return isinstance(error, OSError) and not isinstance(error, _DEFINITE)

        def decide(system: Any, path: str) -> bool:
            return persist(lambda: put(system, path), f"writing {self._url.shown}/{name}", passes, _PUTS_AGAIN)

        is_new = self._do("written", name, decide)
        return is_new or self.read(name) == data

    def put(self, path: Path, name: str) -> None:
        """Upload the file."""
        self._upload(path, name)

    def read(self, name: str) -> bytes | None:
        """Get an object."""

        def get(system: Any, path: str) -> bytes:
            return bytes(system.cat_file(path, start=0))  # without a start, s3fs asks for the size first

        return self._if_there("read", name, get)

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Fetch the object into a temporary folder."""

        def get(system: Any, path: str) -> bool:
            system.get_file(path, str(copy))
            return True

        with tempfile.TemporaryDirectory(prefix="ortdeploy-objects-") as folder:
            copy = Path(folder) / name.rsplit("/", 1)[-1]
            if not self._if_there("read", name, get):
                raise FileNotFoundError(name)
            yield copy

    def exists(self, name: str) -> bool:
        """Ask for the first byte; for properties, s3fs lists what is not there. Objects here are never empty."""
        return self._if_there("read", name, lambda system, path: system.cat_file(path, start=0, end=1)) is not None

    def names(self, folder: str) -> Iterator[str]:
        """Yield what is in a folder, from one listing."""
        found = self._if_there("listed", folder, lambda system, path: system.ls(path, detail=False)) or ()
        here = folder.rsplit("/", 1)[-1]
        names = (str(one).rstrip("/").rsplit("/", 1)[-1] for one in found)
        yield from (name for name in names if name != here)

    def look(self, folder: str, files: Collection[str]) -> Mapping[str, frozenset[str]]:
        """Take one listing of everything in the folder, a thousand objects an answer, not a request for each folder."""

        def listed(system: Any, path: str) -> list[str]:
            return [str(one).removeprefix(path).lstrip("/") for one in system.find(path)]

        within: dict[str, set[str]] = {}
        for name, _, below in (path.partition("/") for path in self._do("listed", folder, listed) if path):
            within.setdefault(name, set()).add(below)
        return {name: frozenset(() if names.isdisjoint(files) else names) for name, names in within.items()}

    def times(self, folder: str, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the times of uploads, from one listing: what is not whole yet is not listed."""
        for one in self._listing(folder):
            name = str(one["name"]).rsplit("/", 1)[-1]
            written = next((one[key] for key in _TIMES if key in one), None)
            if name.startswith(prefix) and written is not None:
                with suppress(ValueError):
                    yield name, _seconds(written)

    def delete(self, name: str) -> None:
        """Delete an object; if there is none, most stores say nothing."""
        self._if_there("deleted", name, lambda system, path: system.rm_file(path))

    def clear(self, folder: str, keep: Collection[str] = ()) -> None:
        """Delete the objects of a listing."""

        def remove(system: Any, path: str) -> None:
            kept = {f"{path}/{name}" for name in keep}
            for one in system.find(path):
                if str(one) not in kept:
                    with suppress(FileNotFoundError):
                        system.rm_file(one)

        self._do("deleted", folder, remove)

    @contextmanager
    def staging(self, name: str) -> Iterator[Path]:
        """Yield a path in a temporary folder, which lasts for this one file."""
        with tempfile.TemporaryDirectory(prefix="ortdeploy-objects-") as folder:
            yield Path(folder) / name.rsplit("/", 1)[-1]

    def stage(self, path: Path, name: str) -> tuple[str, ...]:
        """Upload; the marks are the MD5, in the forms in which stores have it as an object's ETag."""
        for one in sorted(beside(path).rglob("*")):
            if one.is_file():
                self._upload(one, f"{beside_name(name)}/{one.relative_to(beside(path)).as_posix()}")
        if not path.exists():
            return ()
        self._upload(path, name)
        return marks_of(path)

    def publish(self, name: str, final: str) -> bool:
        """Copy a staged object on the store, then delete it."""

        def copy(system: Any, path: str) -> bool:
            system.cp_file(path, self._path(system, final))
            with suppress(FileNotFoundError):
                system.rm_file(path)
            return True

        return self._if_there("published", name, copy) is not None

    def holds(self, name: str, written: Written, marks: tuple[str, ...]) -> bool:
        """Compare the size and a mark; an object that has none of the marks is read."""
        info = self._info(name)
        if info is None:
            raise FileNotFoundError(name)
        if info.get("size") != written.bytes:
            return False
        return not _marks(info).isdisjoint(marks) or self.digest(name) == written.sha256

    def size(self, name: str) -> int | None:
        """Return the size of an object; None if there is none."""
        info = self._info(name)
        return None if info is None else int(info["size"] or 0)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of an object, which is read whole."""
        return self._do("read", name, _digest)

    def taken(self, prefix: str) -> int:
        """Add up sizes of a listing."""
        return sum(size for name, size in self.sizes().items() if name.startswith(prefix))

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the objects right in it, from one listing."""
        return {name: size for name, (size, _) in self.listed().items()}

    def listed(self) -> dict[str, tuple[int, frozenset[str]]]:
        """Return the size of each object right in it, with marks of its content such as its ETag, from one listing."""
        found = self._listing("")
        return {one["name"].rsplit("/", 1)[-1]: (int(one["size"] or 0), frozenset(_marks(one))) for one in found}

    @contextmanager
    def reports(self) -> Iterator[Path]:
        """Yield a temporary folder whose files are uploaded at the end of the block."""
        with tempfile.TemporaryDirectory(prefix="ortdeploy-objects-") as folder:
            yield Path(folder)
            for path in sorted(Path(folder).iterdir()):
                self._upload(path, path.name)

    def _upload(self, path: Path, name: str) -> None:
        def put(system: Any, there: str) -> None:
            persist(lambda: system.put_file(os.fspath(path), there), f"writing {self._url.shown}/{name}")

        self._do("written", name, put)

    def _info(self, name: str) -> Mapping[str, Any] | None:
        found = self._if_there("read", name, lambda system, path: system.info(path))
        return None if found is None or found.get("type", "file") != "file" else found

    def _listing(self, folder: str) -> Sequence[Mapping[str, Any]]:
        return self._if_there("listed", folder, lambda system, path: system.ls(path, detail=True)) or ()

    def _if_there(self, what: str, name: str, act: Callable[[Any, str], T]) -> T | None:
        """Act on an object; None if there is none. Raises OrtdeployError."""

        def attempt(system: Any, path: str) -> T | None:
            try:
                return act(system, path)
            except FileNotFoundError:
                return None

        return self._do(what, name, attempt)

    def _do(self, what: str, name: str, act: Callable[[Any, str], T]) -> T:
        """Act on an object; its package tries again by itself if the store does not answer. Raises OrtdeployError."""
        url = admit(f"{self._url.full}/{name}".rstrip("/"), Use.WRITE)
        with in_words(url, what):
            system, path = open_store(url)
            return act(system, path)

    def _path(self, system: Any, name: str) -> str:
        return str(system._strip_protocol(f"{self._url.full}/{name}"))  # noqa: SLF001  what a file system is to override


def _is_refused(error: OSError) -> bool:
    """Return whether an S3 server says that the object exists.

    s3fs knows a refused put only by the condition that Amazon names in its answer, and few other servers do.
    """
    return error.__cause__ is not None and status_of(error.__cause__) == HTTPStatus.PRECONDITION_FAILED


def _seconds(time: Any) -> float:
    """Return a time of a listing in seconds since 1970: packages have numbers, texts and objects. Raises ValueError."""
    return float(time) if isinstance(time, int | float) else datetime.fromisoformat(str(time)).timestamp()


def marks_of(path: Path) -> tuple[str, ...]:
    """Return the MD5 of a local file, in the forms in which stores have it as an object's ETag. Raises OSError."""
    with open_regular(path) as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return md5.hexdigest(), base64.b64encode(md5.digest()).decode()


def _marks(info: Mapping[str, Any]) -> set[str]:
    """Return what tells an object's content from others, of the names that packages have for it."""
    return {str(info[key]).strip('"') for key in ("ETag", "etag", "md5Hash") if info.get(key)}


def _digest(system: Any, path: str) -> str:
    """Return the SHA-256 of an object, which is read in pieces."""
    digest = hashlib.sha256()
    with system.open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
