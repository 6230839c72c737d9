"""Where the status document of a deployment lies, and how an apply with nothing to do notes in it that it has looked.

Imports almost nothing, because that is most of what such an apply does.
"""

import hashlib
import json
import os
import re
import time

from ortdeploy.files.opening import open_to_change

TYPE_CHECKING = False  # typing takes as long to import as everything else here
if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = "status"
"""The folder of the state directory with a document for each deployment: `<key>.json`."""
MOST_BYTES = 256 * 1024
"""Bytes that a document may have."""
_MOST_READ = 4 * MOST_BYTES
LAST, NEXT = "ortdeploy_deployment_last_look_timestamp_seconds", "ortdeploy_deployment_next_look_timestamp_seconds"
"""The metrics with the times of a document."""
_TIMES = re.compile(r'"last_look": "[^"]*", "next_look": (?:null|"[^"]*")')
_METRICS = rf"^({LAST}|{NEXT})(\{{.*\}}) \S+(?=\n)"  # compiled where metrics are asked for


def key_of(manifest: str, root: str) -> str:
    """Return the key of a deployment: a digest of the full paths of its manifest and of its root."""
    text = json.dumps([os.path.abspath(manifest), os.path.abspath(root)])  # noqa: PTH100  keeps links
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def moment_of(seconds: float) -> str:
    """Return a time in seconds since 1970 as documents have it: ISO 8601 in UTC, with milliseconds."""
    milliseconds = round(seconds * 1000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{stamp}.{milliseconds % 1000:03}+00:00"


def times_of(now: float, every: float | None) -> str:
    """Return the end of a document: when somebody has looked, and when somebody looks next, if that is known."""
    due = "null" if every is None else f'"{moment_of(now + every)}"'
    return f'"last_look": "{moment_of(now)}", "next_look": {due}'


def touch(paths: "Sequence[str]", every: float | None, state: str = "current") -> bool:
    """Note in documents and metrics that somebody has looked now.

    Return False if one is not as it was written, or does not say that a deployment is in the `state`.
    """
    now = time.time()
    try:
        return all(_touch(path, now, every, state) for path in paths)
    except (OSError, ValueError):
        return False


def _touch(path: str, now: float, every: float | None, state: str) -> bool:
    """Write over the times: to replace a file takes a hundred times as long, because file systems then write it out.

    A reader who comes in between finds a time of both, which is a time.
    """
    with open_to_change(path) as file:
        before = file.read(_MOST_READ).decode()
        if path.endswith(".json"):
            if f'"state": "{state}", ' not in before:  # another command line was refused since, say
                return False
            pieces = [(one.span(), times_of(now, every)) for one in _TIMES.finditer(before)]
        else:
            times = {LAST: now, NEXT: now + (every or 0)}
            found = re.finditer(_METRICS, before, re.MULTILINE)
            pieces = [(one.span(), f"{one[1]}{one[2]} {times[one[1]]:.3f}") for one in found]
        if before.isascii() and all(len(text) == end - begin for (begin, end), text in pieces):
            for (begin, _), text in pieces:
                file.seek(begin)
                file.write(text.encode())
            return bool(pieces)
    for (begin, end), text in reversed(pieces):
        before = f"{before[:begin]}{text}{before[end:]}"
    replace_file(path, before)
    return bool(pieces)


def replace_file(path: str, text: str, *, synced: bool = False) -> None:
    """Put a text into the place of a file at once. Other processes may do the same meanwhile. Raises OSError.

    Metrics are for another user, whatever the umask of a service is.
    """
    from pathlib import Path  # noqa: PLC0415  only where a file is written anew

    from ortdeploy.files.atomic import open_cached  # noqa: PLC0415

    with open_cached(Path(path)) as file:
        file.write(text.encode("utf-8", "replace"))
        if not path.endswith(".json") and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), 0o644)
        if synced:
            file.flush()
            os.fsync(file.fileno())
