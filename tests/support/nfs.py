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
        for owner, name in ((os, "stat"), (os, "scandir"), (Path, "read_bytes")):
            patch.setattr(owner, name, self._answering(getattr(owner, name), opens=name == "scandir"))

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Let the block be done by a machine that remembers nothing."""
        self._is_elsewhere = True
        yield
        self._is_elsewhere = False

    def _answering(self, ask: Any, *, opens: bool) -> Any:
        def answer(place: Path | str | int, **more: Any) -> Any:
            if self._is_elsewhere or isinstance(place, int):
                return ask(place, **more)
            path = Path(place)
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
