"""Computes digests of files, what distinguishes one version of a file from another, and the boot id of the machine."""

import hashlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ortdeploy.files.opening import descriptor_of, open_regular, read_text

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of the machine's current boot; empty if the system does not report one."""
    return _text_of(_BOOT)


@cache  # no process outlives a boot
def _text_of(path: Path) -> str:
    with suppress(OSError):
        return read_text(path).strip()
    return ""


_PIECE = 1024 * 1024


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, which is read in pieces. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_file_digest(file: BinaryIO) -> str:
    """Return the SHA-256 of an open file from its beginning; it is read in pieces. Raises OSError."""
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def is_digest(value: object) -> bool:
    """Return whether something has the form of a SHA-256 in hexadecimal digits."""
    return isinstance(value, str) and len(value) == _DIGITS and not value.strip("0123456789abcdef")


_DIGITS = 64


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


_MOST_OF_A_CONTENT = 16 * 1024 * 1024
_OF_A_CONTENT = 16


def content_digest(path: str, size: int, mtime_ns: int) -> bytes | None:
    """Return the first 16 bytes of the SHA-256 of a file of this size and time.

    None if the file is larger than 16 MiB, has another size or time, or cannot be read. It is read in pieces.
    """
    if size > _MOST_OF_A_CONTENT:
        return None
    try:
        file = descriptor_of(path)  # open_regular takes twice as long, and there may be a million
    except (OSError, ValueError):
        return None
    digest, left = hashlib.sha256(), size + 1
    try:
        while left:
            piece = os.read(file, wanted := min(left, _PIECE))
            digest.update(piece)
            left -= len(piece)
            if len(piece) < wanted:  # most files end here, after one read
                break
        stat = os.fstat(file)
    except OSError:
        return None
    finally:
        os.close(file)
    if left == 1 and size == stat.st_size and stat.st_mtime_ns == mtime_ns:
        return digest.digest()[:_OF_A_CONTENT]
    return None


def shortened(sha256: str) -> bytes:
    """Return what `content_digest` returns of a file whose SHA-256 is known. Raises ValueError if it is none."""
    return bytes.fromhex(sha256)[:_OF_A_CONTENT]


def digest_of(content: bytes) -> bytes:
    """Return the first 16 bytes of the SHA-256 of a file's content."""
    return hashlib.sha256(content).digest()[:_OF_A_CONTENT]
