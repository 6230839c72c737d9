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


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays."""
    import shutil  # noqa: PLC0415  brings every way to compress

    shutil.rmtree(folder, ignore_errors=True)
