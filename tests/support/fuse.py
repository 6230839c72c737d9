"""Kills a run within this process before an event that lasts: what anything else may see of it.

Events are what the system is asked for: a commit of a ledger that changes something, a name that a file or folder gets or
loses, an object that a store in memory gets or loses. No method of the program is named here, so whatever is written
anew is killed at its own events. What else a state directory remembers does not count: it is made again.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ortdeploy.files.names import MIRRORS, STATE_DIR
from ortdeploy.ledger.damage import FILE
from support.jobs import Killed

_NAMES = ("link", "mkdir", "remove", "rename", "replace", "rmdir", "unlink")
_OBJECTS = ("cp_file", "pipe_file", "put_file", "rm_file", "_rm")

BEGIN = "begin"
"""What comes before a transaction; it changes nothing, but others wait until its end."""

At = Callable[[str], None]
"""Is called with what is about to happen."""


class Fuse:
    """Ends a run before its nth event. What is dead makes no event any more."""

    def __init__(self, length: int | None) -> None:
        self.length = length
        self.met: list[str] = []

    def burn(self, what: str) -> None:
        """Note an event, and die if it is the one, or if that was before."""
        if what == BEGIN:
            return
        self.met.append(what)
        if self.blew:
            raise Killed

    @property
    def blew(self) -> bool:
        """Whether the run was killed."""
        return self.length is not None and len(self.met) >= self.length


@contextmanager
def watching(at: At) -> Iterator[None]:
    """Call `at` before each event inside, and with BEGIN before a transaction that may change a ledger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(_connect, sqlite3.connect, at))
        for name in _NAMES:
            patch.setattr(os, name, _naming(getattr(os, name), name, at))
        with suppress(ImportError):
            from fsspec.implementations.memory import MemoryFileSystem  # noqa: PLC0415  few tests have a store

            for name in _OBJECTS:
                patch.setattr(MemoryFileSystem, name, _around(getattr(MemoryFileSystem, name), f"object {name}", at))
        yield


@contextmanager
def burning(length: int | None) -> Iterator[Fuse]:
    """Let what runs inside die before its nth event, if it has so many; None lets it live."""
    fuse = Fuse(length)
    with watching(fuse.burn):
        yield fuse


@contextmanager
def killed_at(event: int) -> Iterator[Fuse]:
    """Kill what runs inside before its nth event, if it has so many, and go on behind it."""
    with burning(event) as fuse:
        try:
            yield fuse
        except Killed:
            return


def _naming(do: Callable[..., Any], what: str, at: At) -> Callable[..., Any]:
    """Return a function of `os` whose calls are events, unless what they name is remembered in a state directory."""
    watched = _around(do, what, at)

    def call(path: Any, *arguments: Any, **named: Any) -> Any:
        folder, name = os.path.split(f"/{os.fsdecode(path)}")
        is_ledger = Path(FILE).stem in name or f"/{MIRRORS}/" in f"{folder}/"
        is_memory = f"/{STATE_DIR}/" in f"{folder}/" and not is_ledger
        return (do if is_memory else watched)(path, *arguments, **named)

    return call


def _around(do: Callable[..., Any], what: str, at: At) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        at(what)
        return do(*arguments, **named)

    return call


def _connect(connect: Callable[..., Any], at: At, database: Any, *arguments: Any, **named: Any) -> Any:
    """Open a database, whose commits are events if it is a ledger."""
    if FILE not in str(database):
        return connect(database, *arguments, **named)
    return connect(database, *arguments, **named, factory=partial(_Connection, at))


class _Connection(sqlite3.Connection):
    """A connection whose commits are events, if they change something."""

    def __init__(self, at: At, *arguments: Any, **named: Any) -> None:
        self._at, self._changes = at, 0
        super().__init__(*arguments, **named)

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE":
            self._at(BEGIN)
        if sql.strip().upper() in {"COMMIT", "END"}:
            return _around(super().execute, "commit", self._at)(sql, *arguments)  # type: ignore[no-any-return]
        return super().execute(sql, *arguments)

    def commit(self) -> None:
        self._committing(super().commit)

    def __exit__(self, *raised: object) -> Any:
        leave = partial(super().__exit__, *raised)  # type: ignore[arg-type]
        return leave() if raised[0] is not None else self._committing(leave)

    def _committing(self, commit: Callable[[], Any]) -> Any:
        if not self.in_transaction or self.total_changes == self._changes:
            return commit()
        self._changes = self.total_changes
        return _around(commit, "commit", self._at)()
