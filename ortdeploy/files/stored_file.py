"""Objects of a store that are read in place: only the bytes that are read are fetched, and nothing is kept here.

A file of a web server is fetched whole when it is opened, because few servers promise ranges.
"""

from typing import TYPE_CHECKING, BinaryIO

from ortdeploy.files.opening import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable


class StoredFile(str):
    """An object by its URL without secrets. `state` are its size and version as planned; None if nobody has said."""

    __slots__ = ("_open", "state")
    state: tuple[int, int] | None
    _open: "Callable[[], BinaryIO]"

    @classmethod
    def of(cls, name: str, state: tuple[int, int] | None, open_it: "Callable[[], BinaryIO]") -> "StoredFile":
        """Return a file that `open_it` opens."""
        file = cls(name)
        file.state, file._open = state, open_it
        return file

    def open(self) -> BinaryIO:
        """Open it for reading. Raises OrtdeployError, also while it is read."""
        return self._open()


def open_plain(path: str) -> BinaryIO:
    """Open a file, here or on a store, as it is. Raises OSError, OrtdeployError."""
    return path.open() if isinstance(path, StoredFile) else open_regular(path)
