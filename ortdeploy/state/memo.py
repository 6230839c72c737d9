"""What is remembered in a state directory, so that it need not be found out again.

A value is JSON, of a kind and under a key: whatever it depends on is in the key or in the value. Each is a file of its
own, so commands that run at the same time do not undo each other's work. A file begins with the version of its format
and a checksum, which is also over kind and name. If it is damaged, torn by a loss of power, or of another version, its
value counts as absent. Nothing waits for the disk, and nothing fails: what cannot be written is found out again.

The time of a file says when it was last used. Each kind has a limit: those that were used last stay. `ortdeploy cache
prune` frees those that were not used for long.

Imports almost nothing, because an answer is looked up before anything else is loaded.
"""

import hashlib
import json
import os
import time
from contextlib import suppress

from ortdeploy.files.opening import open_regular

TYPE_CHECKING = False  # typing takes as long to import as everything else here
if TYPE_CHECKING:
    from typing import Any

    AnyPath = str | os.PathLike[str]

FOLDER = "memo"
"""The folder of the state directory, with a folder for each kind."""

KINDS = {
    "answer": (16, 30),
    "clock": (1, 400),
    "digest": (1000, 30),
    "future-files": (1, 400),
    "graph": (500, 30),
    "memory": (1000, 400),
    "opening": (500, 30),
    "plan": (16, 30),
    "rows": (100_000, 30),
    "trials": (100, 400),
    "tuning": (1000, 400),
}
"""The kinds of values: how many stay at most, and after how many days without use one is no longer needed."""

MOST_BYTES = 64 * 1024 * 1024
"""Bytes that a file may have."""

_FORMAT_VERSION = 1
_MARKED_AFTER = 24 * 3600
"""Seconds after which another use sets the time of a file anew."""

_MOST_WAITING = 16 * 1024 * 1024
"""Bytes that may wait."""

_waiting: dict[str, bytes] = {}
"""Files for state directories that do not exist yet, because a plan makes none; the oldest come first."""

_written: dict[str, int] = {}
"""How many files this process has written into each folder. It looks how many there are with its first, then rarely."""


def get(state_dir: "AnyPath", kind: str, key: str) -> "Any":
    """Return a value; None if there is none, or if it is not as it was written."""
    path = _path(state_dir, kind, key)
    with suppress(OSError, ValueError, RecursionError), open_regular(path) as file:
        head, body = file.readline(100), file.read(MOST_BYTES)
        if head != _head(path, body):
            return None
        if abs(time.time() - os.fstat(file.fileno()).st_mtime) > _MARKED_AFTER:
            with suppress(OSError):
                os.utime(path)
        return json.loads(body)
    return None


def put(state_dir: "AnyPath", kind: str, key: str, value: "Any") -> None:
    """Remember a value. If there is no state directory yet, it waits for `put_waiting`."""
    path, body = _path(state_dir, kind, key), json.dumps(value).encode()
    if len(body) > MOST_BYTES:
        return
    content = _head(path, body) + body
    if os.path.isdir(state_dir):  # noqa: PTH112  pathlib may not be loaded
        _write(path, content, KINDS[kind][0])
        return
    _waiting[path] = content
    while sum(map(len, _waiting.values())) > _MOST_WAITING:
        del _waiting[next(iter(_waiting))]


def put_waiting(state_dir: "AnyPath") -> None:
    """Remember what waits for a state directory, which exists by now and has passed the gate."""
    for kind, (most, _) in KINDS.items():
        folder = os.path.join(state_dir, FOLDER, kind, "")  # noqa: PTH118  as above
        for path in [path for path in _waiting if path.startswith(folder)]:
            _write(path, _waiting.pop(path), most)


def drop(state_dir: "AnyPath", kind: str, key: str) -> None:
    """Remember no value."""
    with suppress(OSError):
        os.unlink(_path(state_dir, kind, key))  # noqa: PTH108  pathlib may not be loaded


def entries(state_dir: "AnyPath") -> dict[str, bool]:
    """Return the files of all values, each with whether it was used lately."""
    found = {}
    for kind, (_, days) in KINDS.items():
        since = time.time() - days * 24 * 3600
        found.update({path: used >= since for used, path in _files(os.path.join(state_dir, FOLDER, kind))})  # noqa: PTH118
    return found


def _path(state_dir: "AnyPath", kind: str, key: str) -> str:
    name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    return os.path.join(state_dir, FOLDER, kind, name)  # noqa: PTH118  pathlib may not be loaded


def _head(path: str, body: bytes) -> bytes:
    """Return the first line of a file: version and checksum, which is that of no file of another name or kind."""
    folder, name = os.path.split(path)
    digest = hashlib.sha256(f"{os.path.basename(folder)}/{name}\n".encode())  # noqa: PTH119  as above
    digest.update(body)
    return f"{_FORMAT_VERSION} {digest.hexdigest()}\n".encode()


def _write(path: str, content: bytes, most: int) -> None:
    """Write a file of a kind of which at most `most` stay."""
    from pathlib import Path  # noqa: PLC0415  only where something is written

    from ortdeploy.files.atomic import open_cached  # noqa: PLC0415

    folder = os.path.dirname(path)  # noqa: PTH120  text
    with suppress(OSError):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103  text
        _make_room(folder, most)
        with open_cached(Path(path)) as file:
            file.write(content)


def _make_room(folder: str, most: int) -> None:
    """Delete the files of a kind that were not used for longest, if there are too many. Raises OSError."""
    written = _written.get(folder, 0)
    _written[folder] = written + 1
    if written % max(1, most // 10) == 0:
        for _, path in sorted(_files(folder))[: 1 - most]:
            os.unlink(path)  # noqa: PTH108  as above


def _files(folder: str) -> list[tuple[float, str]]:
    """Return the files of a kind, each with its time in seconds; none behind a link: they may be anybody's.

    A clock that was ahead has left times of the future. They count as the oldest: else such files would stay for good,
    and each new one would go instead.
    """
    found, latest = [], time.time() + _MARKED_AFTER
    if not any(map(os.path.islink, (folder, os.path.dirname(folder)))):  # noqa: PTH120  as above
        with suppress(OSError), os.scandir(folder) as listed:
            for entry in listed:
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        used = entry.stat().st_mtime
                        found.append((used if used <= latest else 0.0, entry.path))
    return found
