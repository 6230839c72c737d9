"""Scratch folders in the system's temporary folder, which no killed process leaves behind for good.

A process holds a lock on its folder until it ends, in whatever way. So the next one knows which folders of this user
belong to nobody any more, and deletes them. Windows has no such lock, and keeps what a killed process has left.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "ortdeploy-{}-"


class Scratch:
    """A folder of this process; with `keep`, its content stays until the next scratch folder of its purpose is made."""

    def __init__(self, path: Path) -> None:
        """Take the path of the folder, without links."""
        self.path = path
        self.keep = False


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Scratch]:
    """Make a folder for a purpose, and delete those that earlier processes have left; at the end, delete it too."""
    prefix = _PREFIX.format(purpose)
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        _delete_if_left(left)
    while True:
        scratch = Scratch(Path(tempfile.mkdtemp(prefix=prefix)).resolve())
        lock = _lock(scratch.path, wait=True)
        if scratch.path.is_dir():  # else another process has found it before it was locked, and deleted it
            break
        _close(lock)
    try:
        yield scratch
    finally:
        if not scratch.keep:
            shutil.rmtree(scratch.path, ignore_errors=True)
        _close(lock)


def _delete_if_left(folder: Path) -> None:
    """Delete a folder of this user that no process holds; leave any other, and what cannot be deleted."""
    lock = _lock(folder, wait=False)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        _close(lock)


def _lock(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder of this user; return the open folder, or None if it is not this user's, is locked, or cannot be."""
    if sys.platform == "win32":
        return None
    import fcntl  # noqa: PLC0415  which Windows does not have

    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        if os.fstat(opened).st_uid == os.getuid():
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return opened
    os.close(opened)
    return None


def _close(lock: int | None) -> None:
    """Release a lock."""
    if lock is not None:
        os.close(lock)
