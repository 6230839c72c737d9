"""What this device says of itself: its id, its clock, and the commit of a checkout."""

import hashlib
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ortdeploy.files.digests import boot_id
from ortdeploy.files.names import is_folder, is_there
from ortdeploy.files.opening import read_text
from ortdeploy.fleet.document import Clock, Device
from ortdeploy.state.looks import moment_of

_MACHINE_ID = Path("/etc/machine-id")
_SYNCHRONISED = Path("/run/systemd/timesync/synchronized")
_LONGEST, _MOST_LABELS = 200, 50
_UNSYNCHRONISED = 5
"""What adjtimex of Linux returns where nothing keeps the clock right."""


def this_device(name: str | None, labels: Mapping[str, str]) -> Device:
    """Return the device of a name and labels, with its id; what is too long for a document is cut."""
    kept = {key: value[:_LONGEST] for key, value in list(labels.items())[:_MOST_LABELS]}
    return Device(name=(name or "unknown")[:_LONGEST], id=_machine(), labels=kept)


def _machine() -> str | None:
    """Return a digest of the machine's id, which itself is for the machine alone."""
    with suppress(OSError, ValueError):
        found = read_text(_MACHINE_ID).strip()
        return hashlib.sha256(f"ortdeploy {found}".encode()).hexdigest()[:32] if found else None
    return None


def this_clock(now: float) -> Clock:
    """Return what is known of the clock, which shows `now`."""
    kind = getattr(time, "CLOCK_BOOTTIME", None)
    uptime = None if kind is None else round(time.clock_gettime(kind), 1)
    return Clock(now=moment_of(now), synchronised=_is_synchronised(), uptime=uptime, boot=boot_id() or None)


def _is_synchronised() -> bool | None:
    """Return whether something keeps the clock of this Linux right, as NTP does; None if that cannot be asked.

    A service with ProtectClock= may not ask the kernel. systemd's own keeper of the clock leaves a file.
    """
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # noqa: PLC0415  only where a document is written

    with suppress(OSError, AttributeError):
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # a struct timex of zeros only asks
        if state >= 0:
            return bool(state != _UNSYNCHRONISED)
    return True if is_there(_SYNCHRONISED) else None


def commit_of(folder: Path) -> str | None:
    """Return the commit that the checkout around a folder is at; None if it is in none."""
    git = _git_folder(folder)
    with suppress(OSError, ValueError):
        if git is not None:
            head = read_text(git / "HEAD").strip()
            return _resolved(git, head.removeprefix("ref: ")) if head.startswith("ref: ") else _commit(head)
    return None


def files_of_commit(folder: Path) -> list[str]:
    """Return those files that say which commit that is, of the ones that there are."""
    git = _git_folder(folder)
    if git is None:
        return []
    with suppress(OSError, ValueError):
        name = read_text(git / "HEAD").strip().removeprefix("ref: ")
        common = _common(git)
        return [str(git / "HEAD"), *(str(one) for one in (common / name, common / "packed-refs") if one.is_file())]
    return []


def _git_folder(folder: Path) -> Path | None:
    """Return the folder with the HEAD of the checkout around a folder."""
    for one in (folder, *folder.parents):
        git = one / ".git"
        if is_folder(git):
            return git
        with suppress(OSError, ValueError):  # a worktree or a submodule
            return one / read_text(git).strip().removeprefix("gitdir: ")
    return None


def _common(git: Path) -> Path:
    """Return the folder of the references that all worktrees share."""
    with suppress(OSError, ValueError):
        return git / read_text(git / "commondir").strip()
    return git


def _resolved(git: Path, name: str) -> str | None:
    """Return the commit that a reference names. Raises OSError, ValueError."""
    common = _common(git)
    with suppress(OSError):
        return _commit(read_text(common / os.path.normpath(name)).strip())
    lines = (line.split(" ") for line in read_text(common / "packed-refs").splitlines())
    return next((_commit(words[0]) for words in lines if words[1:] == [name]), None)


def _commit(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None
