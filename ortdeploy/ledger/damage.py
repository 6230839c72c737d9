"""How a ledger that cannot be used, or is not what was written, is told."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from ortdeploy.diagnostics import OrtdeployError

FILE = "state.db"

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY = 0xFF  # the part of an extended result code that names the kind of error


@contextmanager
def translated() -> Iterator[None]:
    """Raise OrtdeployError for what SQLite raises."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
        what = damaged(error) if code in _DAMAGE else f"the ledger {FILE} cannot be used: {error}"
        raise OrtdeployError(what) from error


def damaged(what: object) -> str:
    """Say that the ledger is damaged, and what to do: nothing of it throws away what is good."""
    return (
        f"the ledger {FILE} is damaged ({what}). Bring it back from a copy; or move it away together with the output "
        "folders, whose results stay as they are, and their jobs start over"
    )


@contextmanager
def undamaged() -> Iterator[None]:
    """Read what the ledger holds. Raises OrtdeployError if that is not what was written: SQLite does not notice."""
    try:
        with translated():
            yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise OrtdeployError(damaged(error)) from error
