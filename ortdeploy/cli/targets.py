"""Keeps flags that name a file to write from writing over anything but an earlier file of the same kind."""

import re
import stat
from enum import Enum
from pathlib import Path

from ortdeploy.diagnostics import UsageError


class Target(Enum):
    """A kind of file that a flag has written, with how its first lines look."""

    PLAN = rb'\{\s*"format_version": \d+,\s*"kind": "\w+",\s*"made_by": "ortdeploy '
    DEVICE = rb"(#.*\n|\s)*device_version:"
    OVERLAY = rb"# Written by ortdeploy tune "
    PAGE = rb'<!doctype html>\n?<html lang="?en"?>(<head>)?<meta charset="?utf-8"?><title>'
    LOG = (
        rb'(?=.*"event": ")(?=.*"level": ")(?=.*"timestamp": ")\{'
        rb"|(\x1b\[\d+m)*\d\d:\d\d:\d\d(\x1b\[\d+m)* \[(\x1b\[\d+m)*(debug|info|warning|error)\b"
    )


_MOST = 1 << 20
"""Bytes of a file's beginning that are looked at; a line of a log may be long."""


def check_target(flag: str, path: str, kind: Target) -> None:
    """Refuse a folder, and a file with content that no such flag has written. Raises UsageError."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return  # nothing is there, or writing will say what is wrong
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{flag}: {path} is a folder; name a file to write")
    if not stat.S_ISREG(found.st_mode):
        if kind is Target.LOG:
            return  # a log may go to a device or a pipe; other files are replaced as a whole
        raise UsageError(f"{flag}: {path} is not a regular file, and it would be replaced by one. Choose another name")
    if found.st_size and not re.match(kind.value, _beginning(flag, path)):
        what = f"{'an' if kind is Target.OVERLAY else 'a'} {kind.name.lower()}"
        raise UsageError(
            f"{flag}: {path} is there already, is not {what} that ortdeploy wrote, and is not overwritten. "
            "Choose another name, or move it away"
        )


def _beginning(flag: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST)
    except OSError as error:
        raise UsageError(
            f"{flag}: {path} is there already, and what it is cannot be read: {error.strerror}. Choose another name"
        ) from error
