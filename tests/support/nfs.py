"""A fake of what an NFS client remembers, as tests/acceptance/test_machine.py sees it on a real one."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Client:
    """Answers from memory that a name is not there, until the folder in which it would be is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of the file system's answers."""
        self._absent: set[Path] = set()
        self._is_elsewhere = False
        patch.setattr(os, "open", self._opening(os.open))
        for owner, name in ((os, "stat"), (os, "scandir"), (Path, "read_bytes")):
            patch.setattr(owner, name, self._answering(getattr(owner, name), opens=name == "scandir"))

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Let the block be done by a machine that remembers nothing."""
        self._is_elsewhere = True
        yield
        self._is_elsewhere = False

    def _opening(self, ask: Any) -> Any:
        """Answer for names in folders that are open."""
        known = self._answering(lambda _path, call: call(), opens=False)

        def answer(name: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            folder = str(Path(f"/proc/self/fd/{dir_fd}").readlink()) if dir_fd is not None else ""
            path = Path(folder, os.fsdecode(name))
            if flags & os.O_CREAT and path.parent not in self._absent:  # the server is asked to make a file
                self._absent.discard(path)
                return int(ask(name, flags, mode, dir_fd=dir_fd))
            found: int = known(path, call=lambda: ask(name, flags, mode, dir_fd=dir_fd))
            return found

        return answer

    def _answering(self, ask: Any, *, opens: bool) -> Any:
        def answer(place: Path | str | int, **more: Any) -> Any:
            if self._is_elsewhere or isinstance(place, int):
                return ask(place, **more)
            path = _named(Path(place))
            if not self._absent.isdisjoint((path, *path.parents)):
                raise FileNotFoundError(errno.ENOENT, "as remembered", str(path))
            try:
                found = ask(path, **more)
            except FileNotFoundError:
                self._absent.add(next(one for one in (*reversed(path.parents), path) if not os.path.lexists(one)))
                raise
            if opens:
                self._absent -= {one for one in self._absent if one.parent == path}
            return found

        return answer


def _named(path: Path) -> Path:
    """Return a path by its names if it begins with an open folder."""
    descriptors = Path("/proc/self/fd")
    if not path.is_relative_to(descriptors) or path == descriptors:
        return path
    number, *rest = path.relative_to(descriptors).parts
    return Path((descriptors / number).readlink(), *rest)
