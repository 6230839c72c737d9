"""Kills a run within this process before or after an event that lasts: what anything else may see of it.

Events are what the system is asked for: a commit of SQLite that changes something, a name that a file or folder gets or
loses, an object that a store in memory gets or loses. No method of the program is named here, so whatever is written
anew is killed at its own events.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from support.jobs import Killed

_NAMES = ("link", "mkdir", "remove", "rename", "replace", "rmdir", "unlink")
_OBJECTS = ("cp_file", "pipe_file", "put_file", "rm_file", "_rm")

At = Callable[[str], None]
"""Is called with what happens, before it does and after it has."""


class Fuse:
    """Ends a run before its nth event or after it; there are two moments an event. What is dead does nothing any more."""

    def __init__(self, moments: int | None) -> None:
        self.left = moments
        self.met: list[str] = []

    def burn(self, what: str) -> None:
        """Note a moment, and die if it is the one, or if that was before."""
        self.met.append(what)
        if self.left is not None and len(self.met) >= self.left:
            raise Killed

    @property
    def blew(self) -> bool:
        """Whether the run was killed."""
        return self.left is not None and len(self.met) >= self.left


@contextmanager
def burning(moments: int | None) -> Iterator[Fuse]:
    """Let what runs inside die at the nth moment, if it has so many; None lets it live."""
    fuse = Fuse(moments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(_connect, sqlite3.connect, fuse.burn))
        for name in _NAMES:
            patch.setattr(os, name, _around(getattr(os, name), name, fuse.burn))
        try:
            from fsspec.implementations.memory import MemoryFileSystem  # noqa: PLC0415  few tests have a store
        except ImportError:
            pass
        else:
            for name in _OBJECTS:
                patch.setattr(
                    MemoryFileSystem, name, _around(getattr(MemoryFileSystem, name), f"object {name}", fuse.burn)
                )
        yield fuse


@contextmanager
def killed_after(moments: int) -> Iterator[Fuse]:
    """Kill what runs inside at the nth moment, if it has so many, and go on behind it."""
    with burning(moments) as fuse:
        try:
            yield fuse
        except Killed:
            return


def _around(do: Callable[..., Any], what: str, at: At) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        at(what)
        done = do(*arguments, **named)
        at(what)
        return done

    return call


def _connect(connect: Callable[..., Any], at: At, database: Any, *arguments: Any, **named: Any) -> Any:
    """Open a database whose commits are events, unless it is in memory."""
    if str(database) == ":memory:":
        return connect(database, *arguments, **named)
    return connect(database, *arguments, **named, factory=partial(_Connection, at))


class _Connection(sqlite3.Connection):
    """A connection whose commits are events, if they change something."""

    def __init__(self, at: At, *arguments: Any, **named: Any) -> None:
        self._at, self._changes = at, 0
        super().__init__(*arguments, **named)

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
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
