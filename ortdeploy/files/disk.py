"""Free disk space, what to do about a disk that fails, and folders that are removed whole."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from ortdeploy.files.names import is_there

_READ_ONLY = "; its disk is mounted read-only: see dmesg for why"
_TAKES_NO_FILE = "; its disk takes no more files, see df -i: remove some that nobody needs"
_ADVICE = {
    errno.ENOSPC: "; make room on its disk",
    errno.EDQUOT: "; make room within this user's quota",
    errno.EROFS: _READ_ONLY,
    errno.EIO: "; its disk fails, or this user's quota is used up: see dmesg",
}


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes of the file system of a folder, which need not exist; None if they are unknown."""
    with suppress(OSError):
        return free_at(_existing(folder))
    return None


def _existing(place: Path) -> Path:
    while not is_there(place) and place != place.parent:
        place = place.parent
    return place


def advice_on_disk(number: int | None, place: Path) -> str:
    """Return what to do about an error of a disk, as the end of a sentence about a place on it; empty if not known.

    `number` is an errno. None: something cannot be written, and only a look at the disk may tell why.
    """
    if number in {None, errno.ENOSPC} and hasattr(os, "statvfs"):
        with suppress(OSError):
            found = os.statvfs(_existing(place))
            if found.f_flag & os.ST_RDONLY:
                return _READ_ONLY
            if found.f_files and not found.f_favail:  # some file systems count none
                return _TAKES_NO_FILE
    return "" if number is None else _ADVICE.get(number, "")


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
