"""Locks an output for one run at a time, and says who holds the lock.

SQLite's file lock ends with its process, however that ends, so a file left behind by a killed run locks nothing.
"""

import json
import os
import platform
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ortdeploy.diagnostics import LockedError, OrtdeployError, failure_at
from ortdeploy.events import log
from ortdeploy.files.atomic import open_cached
from ortdeploy.files.digests import boot_id
from ortdeploy.files.json_text import read_json
from ortdeploy.files.names import relative
from ortdeploy.files.opening import NoRegularFileError, read_text
from ortdeploy.files.urls import decoded, is_url
from ortdeploy.ledger.damage import unusable
from ortdeploy.ledger.ledger import now
from ortdeploy.ledger.opening import database, make_folder
from ortdeploy.ledger.records import output_file

FOLDER = "locks"
_PLAIN = re.compile(r"[\w.:+ -]{1,255}")
PATIENCE = 0.2
"""Seconds to wait for a `status` that looks at the lock at the same moment."""
PATIENCE_IN_USE = 60.0
"""Seconds to wait for a process that has the sole use of something."""


@contextmanager
def hold_outputs(state_dir: Path, outputs: Iterable[str]) -> Iterator[list[Path]]:
    """Lock several outputs, always in the same order, so that two runs never wait for each other.

    Yields the files that say who holds the locks. Raises LockedError, OrtdeployError.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(hold_output(state_dir, output)) for output in sorted(set(outputs))]


@contextmanager
def hold_output(state_dir: Path, output: str) -> Iterator[Path]:
    """Lock an output inside the block; yield the file that says who holds it. Raises LockedError, OrtdeployError."""
    lock = output_file(state_dir, FOLDER, output, ".db")
    holder = lock.with_suffix(".json")
    with _connection(lock, PATIENCE) as connection:
        refusal = f"{_shown(state_dir, output)} is held by a live run{_describe(holder)}"
        _take(connection, lock, LockedError(refusal, output))
        _tell_what_was_left(holder, output)
        _write_holder(holder, output)
        try:
            yield holder
        finally:
            with suppress(OSError):  # the lock is SQLite's; what is left tells the next run only that there was one
                holder.unlink()


@contextmanager
def noted_shards(state_dir: Path, outputs: Iterable[str]) -> Iterator[list[Path]]:
    """Write down inside the block that this process makes shards of outputs, named by `shard_of`; yield the files.

    They are for notes of crashes. Nothing is locked, because the same shard may run twice at the same time. There are
    no files if the state folder cannot be written, which shards only need to read.
    """
    holders = []
    with suppress(OrtdeployError):
        for output in sorted(set(outputs)):
            holder = output_file(state_dir, FOLDER, output, ".json")
            make_folder(holder.parent)
            _write_holder(holder, output)
            holders.append(holder)
    try:
        yield holders
    finally:
        for holder in holders:
            with suppress(OSError):  # Windows removes no file that another process of the same shard has open
                holder.unlink()


def shard_of(output: str, shard: str) -> str:
    """Return the name under which a crash of one shard of an output is noted."""
    return f"{output}#{shard}"


def _shown(state_dir: Path, output: str) -> str:
    """Return an output as its user knows it: a URL, or a path from here if it lies below."""
    name = decoded(output.rpartition("/")[2])
    if is_url(name):  # what is uploaded is written into a folder that is named by the URL
        return name
    place = os.path.abspath(state_dir / output)  # noqa: PTH100  without following links
    here = relative(place, os.curdir)
    return place if here.startswith("..") else here


@contextmanager
def shared_use(state_dir: Path, name: str) -> Iterator[None]:
    """Use something of the state folder inside the block, as others may at the same time; nobody has its sole use.

    Raises OrtdeployError.
    """
    with _connection(state_dir / FOLDER / f"{name}.db", PATIENCE_IN_USE) as connection:
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # takes SQLite's shared lock
        except sqlite3.Error as error:
            raise OrtdeployError(unusable(state_dir / FOLDER / f"{name}.db", error)) from error
        yield


@contextmanager
def sole_use(state_dir: Path, name: str) -> Iterator[bool]:
    """Get the sole use of something of the state folder, if nobody uses it; yield whether that succeeded.

    Raises OrtdeployError.
    """
    with _connection(state_dir / FOLDER / f"{name}.db", 0) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
            alone = True
        except sqlite3.OperationalError:
            alone = False
        except sqlite3.Error as error:
            raise OrtdeployError(unusable(state_dir / FOLDER / f"{name}.db", error)) from error
        yield alone


@contextmanager
def _connection(lock: Path, patience: float) -> Iterator[sqlite3.Connection]:
    make_folder(lock.parent)
    try:
        connection = sqlite3.connect(database(lock), timeout=patience, isolation_level=None)
    except (sqlite3.Error, NoRegularFileError) as error:
        raise OrtdeployError(unusable(lock, error)) from error
    try:
        yield connection
    finally:
        connection.close()


def _take(connection: sqlite3.Connection, lock: Path, refusal: LockedError) -> None:
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise refusal from error
        raise OrtdeployError(unusable(lock, error)) from error


def is_live(state_dir: Path, output: str) -> bool:
    """Return whether a run holds an output at this moment, without making or locking anything."""
    lock = output_file(state_dir, FOLDER, output, ".db")
    if not lock.exists():
        return False
    try:
        connection = sqlite3.connect(database(lock), timeout=0)
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
    except (sqlite3.Error, NoRegularFileError) as error:
        raise OrtdeployError(unusable(lock, error)) from error
    return False


def _tell_what_was_left(path: Path, output: str) -> None:
    """Log that there is a file, which a run left that was killed."""
    left = _read_holder(path)
    if left:
        log.info("lock.was_left", output=output, holder=dict(left), restarted=left.get("boot") != boot_id())


def _write_holder(path: Path, output: str) -> None:
    """Write that this process makes an output."""
    holder = {"output": output, "pid": os.getpid(), "host": platform.node(), "boot": boot_id(), "started": now()}
    try:
        with open_cached(path) as file:  # in place of whatever has its name
            file.write(f"{json.dumps(holder)}\n".encode())
    except OSError as error:
        raise OrtdeployError(failure_at(path, error)) from error


def _read_holder(path: Path) -> Mapping[str, Any]:
    try:
        known = read_json(read_text(path, errors="replace").partition("\n")[0])
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def crash_of_holder(state_dir: Path, output: str) -> str | None:
    """Return what native code said as it ended the last run that held an output; None if it ended otherwise."""
    try:
        text = read_text(output_file(state_dir, FOLDER, output, ".json"), errors="replace")
    except OSError:
        return None
    said = text.partition("\n")[2].strip()
    return said.splitlines()[0] if said else None


def _describe(holder: Path) -> str:
    known = _read_holder(holder)
    pid, host, started = (known.get(name) for name in ("pid", "host", "started"))
    whole = type(pid) is int and all(isinstance(one, str) and _PLAIN.fullmatch(one) for one in (host, started))
    return f": process {pid} on {host}, since {started}" if whole else ""
