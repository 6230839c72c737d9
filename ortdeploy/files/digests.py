"""Computes digests of files, what distinguishes one version of a file from another, and the boot id of the machine."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of the machine's current boot; empty if the system does not report one."""
    with suppress(OSError):
        return _BOOT.read_text(encoding="ascii").strip()
    return ""


_PIECE = 1024 * 1024


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, which is read in pieces. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_file_digest(file: BinaryIO) -> str:
    """Return the SHA-256 of an open file from its beginning; it is read in pieces. Raises OSError."""
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def signature(stat: os.stat_result) -> dict[str, int]:
    """Return values that change when a name points to another file, or when the file is written to.

    The time of change also moves if only the file's names or permissions change.
    """
    return {
        "device": stat.st_dev,
        "inode": stat.st_ino,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns,
    }
