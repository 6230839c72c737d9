"""Makes objects of a store `StoredFile`s, of which only the bytes that are read are fetched."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, overload

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.gate import Use, admit
from ortdeploy.files.object_store import Fetched, in_words, is_web, open_store, state_in
from ortdeploy.files.opening import open_regular
from ortdeploy.files.stored_file import StoredFile
from ortdeploy.files.urls import Addresses, Url, is_url, parse_url
from ortdeploy.retries import persist

_LEAST = 256 * 1024
_MOST = 4 * 1024 * 1024
"""The least and the most bytes of a request: the first after a jump has the least, each further one twice as many."""


class InPlace(Sequence[str]):
    """A sequence of files of which those on stores are `StoredFile`s."""

    def __init__(
        self,
        files: Sequence[str],
        states: Sequence[tuple[Any, int, int]] | None,
        addresses: Addresses,
        fetched: Fetched,
    ) -> None:
        """Take the files by their names without secrets, each with its planned state, and those of web servers."""
        self._files = files
        self._states = states
        self._addresses = addresses
        self._fetched = fetched

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "InPlace": ...
    def __getitem__(self, index: int | slice) -> "str | InPlace":
        """Return a file; nothing is fetched."""
        if isinstance(index, slice):
            states = None if self._states is None else self._states[index]
            return InPlace(self._files[index], states, self._addresses, self._fetched[index])
        name = self._files[index]
        if not is_url(name):
            return name
        _, size, version = (name, 0, 0) if self._states is None else self._states[index]
        state = None if self._states is None else (size, version)
        if is_web(parse_url(name)):
            return StoredFile.of(name, state, lambda: open_regular(self._fetched[index]))
        return StoredFile.of(name, state, partial(_open_ranges, self._addresses.full(name), state))


@contextmanager
def in_place(
    files: Sequence[str], patterns: Sequence[str], states: Sequence[tuple[Any, int, int]] | None = None
) -> Iterator[Sequence[str]]:
    """Yield files that `open_plain` opens; `patterns` are the input's paths as the manifest has them.

    `states` say of each file its name, its size and its version.
    """
    if not any(map(is_url, patterns)):
        yield files
        return
    import tempfile  # noqa: PLC0415  only for URLs

    addresses = Addresses.of(patterns)
    with tempfile.TemporaryDirectory(prefix="ortdeploy-objects-") as folder:
        yield InPlace(files, states, addresses, Fetched(files, Path(folder), addresses))


def _open_ranges(address: str, state: tuple[int, int] | None) -> BinaryIO:
    url = admit(address, Use.READ)
    with in_words(url, "read"):
        system, path = open_store(url)
        file = system.open(path, "rb", cache_type="none")
        info = getattr(file, "details", None) or system.info(path)
        if state is not None and state_in(info) != state:
            file.close()
            raise OrtdeployError(f"{url} is not what it was when the plan was made: it changed meanwhile. Plan again")
    return io.BufferedReader(_Ranges(url, file, int(info["size"])), _MOST)


class _Ranges(io.RawIOBase):
    """An object that is read in requests for some bytes each."""

    def __init__(self, url: Url, file: Any, size: int) -> None:
        self._url, self._file, self._size = url, file, size
        self._at, self._next = 0, _LEAST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset != self._at:
            self._at, self._next = base + offset, _LEAST
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._next, max(self._size - self._at, 0))
        if not wanted:
            return 0

        def read() -> bytes:
            self._file.seek(self._at)
            data: bytes = self._file.read(wanted)
            if not data:
                raise OSError(f"it ended behind {self._at} of {self._size} bytes")
            return data

        with in_words(self._url, "read"):
            data = persist(read, f"reading {self._url}")
        buffer[: len(data)] = data
        self._at += len(data)
        self._next = min(2 * self._next, _MOST)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
