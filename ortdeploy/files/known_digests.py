"""Remembers the digests of large files, so that a plan need not read gigabytes of weights again.

A digest is reused while the file's device, inode, size, modification and change times stay the same, as in git, and
only until the next boot, because a power loss can change a file without changing its times. `ortdeploy lock` reads
every file.
"""

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortdeploy.files.atomic import open_cached
from ortdeploy.files.digests import boot_id, file_digest, signature
from ortdeploy.files.disk import make_folders
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_text

LARGE = 16 * 1024 * 1024
"""Size in bytes from which a digest is remembered; smaller files are read in hundredths of a second."""

_MOST = 1000
"""Number of digests that are remembered, the latest ones: inputs and parts come and go for years."""

_NAME = "known-digests.json"
_FORMAT_VERSION = 1
_RACY_NS = (
    2_000_000_000  # a file changed later than this before it is read may change again within one tick of its times
)


class DigestCache:
    """Digests of files by path, in a state folder; without a folder that can be written, nothing is remembered."""

    def __init__(self, state_dir: Path | None) -> None:
        """Take the folder; it is made when there is something to remember."""
        self._path = state_dir / _NAME if state_dir else None
        self._boot = boot_id()
        self._known: dict[str, Any] = {}
        if self._path is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                document = read_json(read_text(self._path))
                if (document["format_version"], document["boot"]) == (_FORMAT_VERSION, self._boot):
                    self._known = dict(document["files"])

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file. Raises OSError."""
        before = signature(path.stat())
        if self._path is None or before["size"] < LARGE:
            return file_digest(path)
        key = os.path.realpath(path)
        known = self._known.get(key)
        if (
            isinstance(known, dict)
            and known == {**before, "sha256": (kept := known.get("sha256"))}
            and _is_digest(kept)
        ):
            return str(kept)
        settled = max(before["mtime_ns"], before["ctime_ns"]) < time.time_ns() - _RACY_NS
        digest = file_digest(path)
        if settled and signature(path.stat()) == before:
            self._known.pop(key, None)
            self._known = {**dict(list(self._known.items())[1 - _MOST :]), key: {**before, "sha256": digest}}
            self._keep(self._path)
        return digest

    def _keep(self, path: Path) -> None:
        """Write the known digests; an error is ignored, as it only costs time later."""
        document = {"format_version": _FORMAT_VERSION, "boot": self._boot, "files": self._known}
        with suppress(OSError):
            make_folders(path.parent)
            with open_cached(path) as file:
                file.write(json.dumps(document).encode())


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None
