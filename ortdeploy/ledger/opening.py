"""Opens the ledger of a state directory, to write or to read; finds which ledger an output folder names."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.events import log
from ortdeploy.files.atomic import TEMPORARY, make_durable_folder, sync_folder
from ortdeploy.files.json_text import read_json
from ortdeploy.files.names import MARKER, is_there_now
from ortdeploy.files.opening import open_regular, regular_path
from ortdeploy.ledger.damage import FILE, translated
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.ledger.versions import LEDGER_VERSION, bring_up_to_date, version_of

_MOST_OF_A_MARKER = 64 * 1024
_PATIENCE = 60.0
"""Seconds to wait for the transaction of another run that writes into the same ledger."""
_LONGEST = 504
"""Bytes of the longest path that SQLite opens: its MAX_PATHNAME of 512, less the journal's ending."""
_MOST_OF_A_JOURNAL = 1024 * 1024
"""Bytes of SQLite's journal that stay for the next transaction."""


@contextmanager
def open_ledger(state_dir: Path) -> Iterator[Ledger]:
    """Open the ledger of a state directory for writing; make or migrate it where needed. Raises OrtdeployError."""
    with translated(state_dir):
        make_folder(state_dir)
        path = database(state_dir / FILE)
        with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            # a journal that stays has its place on the disk; to make and delete one takes several times as long
            connection.execute("PRAGMA journal_mode = PERSIST")
            connection.execute(f"PRAGMA journal_size_limit = {_MOST_OF_A_JOURNAL}")
            connection.execute("PRAGMA foreign_keys = ON")
            if version_of(connection) != LEDGER_VERSION:
                bring_up_to_date(connection, partial(_keep_old, path))
            yield Ledger(connection, state_dir)


def _keep_old(path: Path, version: int) -> None:
    """Copy a ledger that is about to be migrated, for the ortdeploy that wrote it. Raises OrtdeployError.

    A copy of that name is of an earlier migration, perhaps of one that was killed. SQLite copies, because its locks on
    the ledger would end when this process closes the file.
    """
    copy = path.with_stem(f"{path.stem}-v{version}")
    waiting = path.with_name(f".{copy.name}{TEMPORARY}")
    try:
        waiting.unlink(missing_ok=True)
        with closing(connection_to(path)) as old, closing(sqlite3.connect(waiting)) as new:
            old.backup(new)
        waiting.replace(copy)
        sync_folder(path.parent)
    except (OSError, sqlite3.OperationalError) as error:  # SQLite raises the latter if the disk is full
        why = error.strerror if isinstance(error, OSError) else error
        raise OrtdeployError(f"{copy} cannot be written, and the ledger was not migrated: {why}") from error
    log.warning("ledger.kept", ledger=str(path), version=version, now=LEDGER_VERSION, kept=copy.name)


@contextmanager
def read_ledger(state_dir: Path) -> Iterator[Ledger | None]:
    """Open a ledger to read it, without making or changing one, also while a run is live; None if there is none."""
    path = state_dir / FILE
    if not has_ledger(state_dir):
        yield None
        return
    with translated(state_dir), closing(connection_to(path)) as connection:
        match version_of(connection):
            case 0:
                yield None
            case version if version == LEDGER_VERSION:
                yield Ledger(connection, state_dir)
            case _:
                with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                    connection.backup(copy)
                    bring_up_to_date(copy)
                    yield Ledger(copy, state_dir)


@contextmanager
def copy_of_ledger(state_dir: Path) -> Iterator[Ledger]:
    """Open a copy of a ledger in memory: what is written into it is lost. Raises OrtdeployError."""
    with translated(), closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        path = state_dir / FILE
        if has_ledger(state_dir):
            with closing(connection_to(path)) as connection:
                connection.backup(copy)
        if version_of(copy) != LEDGER_VERSION:
            bring_up_to_date(copy)
        yield Ledger(copy, state_dir)


def has_ledger(state_dir: Path) -> bool:
    """Return whether a state directory has a ledger. Raises OrtdeployError if the system lets nobody look."""
    path = state_dir / FILE
    if is_there_now(path):
        return True
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise OrtdeployError(
            f"{path} cannot be looked up: {error.strerror}. Run this as a user who may read the state "
            "directory, or name another one with --state-dir"
        ) from error
    return True


def database(path: Path) -> Path:
    """Return the path of an SQLite file, which is regular or not there, as are its journals.

    Raises OSError, and OrtdeployError for a path that SQLite cannot open, of which it says nothing else.
    """
    if len(os.fsencode(path.absolute())) > _LONGEST:
        raise OrtdeployError(
            f"the path of {path} has more than {_LONGEST} bytes, which SQLite cannot open. Name a state directory with "
            "a shorter path: --state-dir"
        )
    for end in ("", "-journal", "-wal", "-shm"):
        regular_path(f"{path}{end}", may_be_missing=True)
    return path


def connection_to(path: Path) -> sqlite3.Connection:
    """Open a ledger that is there to read it. Raises OSError if it is no file."""
    # mode=rw and not ro: after a kill, SQLite must be able to roll the journal back before anything can be read.
    return sqlite3.connect(f"{database(path).absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


def read_outputs(state_dir: Path) -> tuple[OutputRecord, ...]:
    """Return all outputs that a state directory's ledger knows, as of one moment; see `read_ledger`."""
    with read_ledger(state_dir) as ledger:
        if ledger is None:
            return ()
        with ledger.at_one_moment():
            return ledger.outputs()


def named_ledger(folder: Path) -> str | None:
    """Return the ledger that an output folder names, as one line of text; None if it names none."""
    return read_marker(folder).get("ledger")


def read_marker(folder: Path) -> dict[str, str]:
    """Return what an output folder says of itself: its `ledger`, `deployment` and `job`, each one line of text."""
    try:
        with open_regular(folder / MARKER) as file:
            known = read_json(file.read(_MOST_OF_A_MARKER))
    except (OSError, ValueError):
        return {}
    texts = known.items() if isinstance(known, dict) else ()
    return {name: text for name, text in texts if isinstance(text, str) and text.isprintable() and text}


def make_folder(folder: Path) -> None:
    """Make a folder of the state directory, durably. Raises OrtdeployError."""
    try:
        make_durable_folder(folder)
    except OSError as error:
        raise OrtdeployError(f"the state directory cannot be made: {failure_at(folder, error)}") from error
