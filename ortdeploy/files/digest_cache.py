"""Remembers the digests of large files, so that a plan need not read gigabytes of weights again.

A digest is reused while the file's device, inode, size, modification and change times stay the same, as in git, and
only until the next boot, because a power loss can change a file without changing its times. `ortdeploy lock` reads
every file.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortdeploy.files.digests import boot_id, file_digest, is_digest, signature
from ortdeploy.files.disk import make_folders
from ortdeploy.state import memo

LARGE = 16 * 1024 * 1024
"""Size in bytes from which a digest is remembered; smaller files are read in hundredths of a second."""

_KIND = "digest"
_RACY_NS = (
    2_000_000_000  # a file changed later than this before it is read may change again within one tick of its times
)


class DigestCache:
    """Digests of files by path, in a state folder; without a folder, nothing is remembered."""

    def __init__(self, state_dir: Path | None) -> None:
        """Take the folder; it is made when there is something to remember."""
        self._state_dir = state_dir
        self._known: dict[str, Any] = {}  # of a folder that cannot be written

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file. Raises OSError."""
        before = signature(path.stat())
        if self._state_dir is None or before["size"] < LARGE:
            return file_digest(path)
        key, state = os.path.realpath(path), {"boot": boot_id(), **before}
        known = self._known.get(key) or memo.get(self._state_dir, _KIND, key)
        if isinstance(known, dict) and known == {**state, "sha256": (kept := known.get("sha256"))} and is_digest(kept):
            return str(kept)
        settled = max(before["mtime_ns"], before["ctime_ns"]) < time.time_ns() - _RACY_NS
        digest = file_digest(path)
        if settled and signature(path.stat()) == before:
            self._known[key] = {**state, "sha256": digest}
            with suppress(OSError):
                make_folders(self._state_dir)
            memo.put(self._state_dir, _KIND, key, self._known[key])
        return digest
