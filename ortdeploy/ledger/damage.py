"""Turns errors about a ledger that cannot be used, or is damaged, into messages."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.opening import NoRegularFileError

FILE = "state.db"

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY = 0xFF  # the part of an extended result code that names the kind of error


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors that SQLite raises inside the block into OrtdeployError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
        what = damaged(error) if code in _DAMAGE else f"the ledger {FILE} cannot be used: {error}"
        raise OrtdeployError(what) from error
    except NoRegularFileError as error:
        raise OrtdeployError(f"{error.filename} cannot be read: {error.strerror}") from error


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
