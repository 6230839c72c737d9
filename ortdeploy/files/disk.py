"""Free disk space."""

import shutil
from contextlib import suppress
from pathlib import Path

from ortdeploy.files.names import is_there


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes of the file system of a folder, which need not exist; None if they are unknown."""
    while not is_there(folder) and folder != folder.parent:
        folder = folder.parent
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return None
