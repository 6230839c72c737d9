"""Keeps flags that name a file to write from writing over anything but an earlier file of the same kind.

What a manifest names or makes is not written over even if it looks like such a file, and not made either.
"""

import argparse
import re
import stat
from enum import Enum
from pathlib import Path

from ortdeploy.diagnostics import UsageError
from ortdeploy.files.opening import open_regular


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


def check_target(flag: str, path: str, kind: Target, arguments: argparse.Namespace) -> None:
    """Refuse a folder, a file with content that no such flag has written, and what a manifest at hand names or makes.

    Raises UsageError.
    """
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        _refuse_named(flag, path, arguments)
        return
    except (OSError, ValueError):
        return  # writing will say what is wrong
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
    _refuse_named(flag, path, arguments)


def _refuse_named(flag: str, path: str, arguments: argparse.Namespace) -> None:
    if not getattr(arguments, "paths", None):
        return
    from ortdeploy.cli.command_line.named_files import role_of  # noqa: PLC0415  brings all that planning does

    role = role_of(path, arguments)
    if role is not None:
        raise UsageError(
            f"{flag}: {path} is {role} of the deployment, and no flag writes over that. Choose another name"
        )


def _beginning(flag: str, path: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_MOST)
    except OSError as error:
        raise UsageError(
            f"{flag}: {path} is there already, and what it is cannot be read: {error.strerror}. Choose another name"
        ) from error
