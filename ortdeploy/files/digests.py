"""Computes digests of files, what tells one file from another, and the id of a start of the machine."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of this start of the machine; nothing if the system does not say."""
    with suppress(OSError):
        return _BOOT.read_text(encoding="ascii").strip()
    return ""


_PIECE = 1024 * 1024


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_file_digest(file: BinaryIO) -> str:
    """Return the SHA-256 of an open file from its beginning, read in pieces. Raises OSError."""
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def signature(stat: os.stat_result) -> dict[str, int]:
    """Return what is another where a name stands for another file, or where a file was written to.

    The time of change also moves where only a file's names or rights do.
    """
    return {
        "device": stat.st_dev,
        "inode": stat.st_ino,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns,
    }
