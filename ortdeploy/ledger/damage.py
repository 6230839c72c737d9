"""Turns errors about a ledger that cannot be used, or is damaged, into messages."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.disk import advice_on_disk
from ortdeploy.files.opening import NoRegularFileError

FILE = "state.db"

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY = 0xFF  # the part of an extended result code that names the kind of error
_AS_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_CANTOPEN: None,
    sqlite3.SQLITE_READONLY: None,
}
"""The errors of SQLite that may come from the disk."""


@contextmanager
def translated(state_dir: Path | None = None) -> Iterator[None]:
    """Turn the errors that SQLite raises inside the block into OrtdeployError; `state_dir` is where the ledger is."""
    try:
        yield
    except sqlite3.Error as error:
        place = Path(FILE) if state_dir is None else state_dir / FILE
        is_damaged = _code(error) in _DAMAGE
        raise OrtdeployError(damaged(error) if is_damaged else f"the ledger {unusable(place, error)}") from error
    except NoRegularFileError as error:
        raise OrtdeployError(f"{error.filename} cannot be read: {error.strerror}") from error


def _code(error: sqlite3.Error | NoRegularFileError) -> int:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY


def unusable(path: Path, error: sqlite3.Error | NoRegularFileError) -> str:
    """Return a message: a file of SQLite cannot be used, and what to do if that is because of its disk."""
    code = _code(error)
    return f"{path} cannot be used: {error}{advice_on_disk(_AS_ERRNO[code], path) if code in _AS_ERRNO else ''}"


def damaged(what: object) -> str:
    """Return a message: the ledger is damaged, and what to do. Nothing that it advises discards good results."""
    return (
        f"the ledger {FILE} is damaged ({what}). Restore it from a copy; or move it away together with the output "
        "folders, whose results stay as they are, and their jobs start over"
    )


@contextmanager
def undamaged() -> Iterator[None]:
    """Turn errors over cells that are not what was written into OrtdeployError: SQLite itself notices nothing."""
    try:
        with translated():
            yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise OrtdeployError(damaged(error)) from error
