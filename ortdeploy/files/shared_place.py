"""Places where many processes write files together, and what they need to decide who is first.

A place is a folder (`shared_folder`) or a folder on an object store (`shared_store`). Names in it are relative, with
forward slashes. Only `create` decides: of many calls for one name, one gets True.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from ortdeploy.files.atomic import Written

GIVEN_UP = b'{"given_up": true}\n'
"""What that file holds if another plan has begun before this one had its parts: then it never will."""


class SharedPlace(Protocol):
    """A place that many processes see. Every method raises OSError or OrtdeployError if the place does not answer."""

    @property
    def shown(self) -> str:
        """Return how messages call the place."""

    @property
    def at_once(self) -> int:
        """Return how many requests it takes at the same time: a store is far, and answers many as quickly as one."""

    def make(self, folder: str) -> None:
        """Make a folder in it, durably. Raises RefusedError if files there could be created twice."""

    def unmake(self, folder: str) -> None:
        """Take a folder back that `make` has made, unless somebody has written into it."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file, whole and durable; return whether these bytes stand, and no others that were there before."""

    def put(self, path: Path, name: str) -> None:
        """Write a local file under a name there, whole and durable, in place of what has it. It decides nothing."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None if there is none."""

    def local(self, name: str) -> AbstractContextManager[Path]:
        """Yield a local path of a file. If it is gone, this or the block raises FileNotFoundError."""

    def exists(self, name: str) -> bool:
        """Return whether there is a file."""

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of what is in a folder, in any order; none if there is no folder."""

    def look(self, folder: str, files: Collection[str]) -> Mapping[str, frozenset[str]]:
        """Return the names of what is in a folder; with those of folders that hold one of `files`, what is in these."""

    def times(self, folder: str, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the names in a folder that begin so, each with when it was written last, in seconds since 1970."""

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""

    def clear(self, folder: str, keep: Collection[str] = ()) -> None:
        """Delete what is in a folder, at any depth, but for files in it that are kept."""

    def staging(self, name: str) -> AbstractContextManager[Path]:
        """Yield a local path at which the bytes of a file are written; if the block fails, nothing is left of it.

        Files that belong to it go into the folder `beside` the path.
        """

    def stage(self, path: Path, name: str) -> tuple[str, ...]:
        """Make what is at a path that `staging` gave durable under a name; return marks by which to know it again."""

    def publish(self, name: str, final: str) -> bool:
        """Give a staged file its final name, durably; return False if it is gone because somebody else has done it."""

    def holds(self, name: str, written: Written, marks: tuple[str, ...]) -> bool:
        """Return whether a file is what was written. Raises FileNotFoundError."""

    def taken(self, prefix: str) -> int:
        """Return how many bytes the files take whose names begin so."""

    def reports(self) -> AbstractContextManager[Path]:
        """Yield a local folder; the files that the block writes into it are in the place afterwards, each whole."""


def beside(path: Path) -> Path:
    """Return the local folder of the files that belong to a staged one."""
    return path.with_name(f"{path.name}.d")


def beside_name(name: str) -> str:
    """Return the staged name of the folder of these files."""
    return f"{name}.d"
