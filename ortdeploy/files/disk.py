"""Free disk space, and folders that are removed whole."""

import os
from contextlib import suppress
from pathlib import Path

from ortdeploy.files.names import is_there


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes of the file system of a folder, which need not exist; None if they are unknown."""
    while not is_there(folder) and folder != folder.parent:
        folder = folder.parent
    with suppress(OSError):
        return free_at(folder)
    return None


def free_at(folder: Path) -> int:
    """Return the bytes that this user may still write where a folder is. Raises OSError."""
    if hasattr(os, "statvfs"):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    import shutil  # noqa: PLC0415  brings every way to compress

    return shutil.disk_usage(folder).free


def missing_folders(folder: Path) -> list[Path]:
    """Return a folder and those above it that are not there, the topmost first. Raises OSError.

    There may be more of them than functions can call each other, as `Path.mkdir` and `os.makedirs` do for each.
    """
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    return missing[::-1]


def make_folders(folder: Path) -> None:
    """Make a folder and its missing parents. Raises OSError."""
    for one in missing_folders(folder):
        one.mkdir(exist_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays."""
    import shutil  # noqa: PLC0415  brings every way to compress

    shutil.rmtree(folder, ignore_errors=True)
