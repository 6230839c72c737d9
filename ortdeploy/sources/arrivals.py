"""Chooses the files that the next run of a recurring job reads, while files arrive, change and go.

A file is settled if nothing has changed it for the time that the manifest says. The later of its two times counts: a
copy may keep the old modification time, but not the time of the change of its inode. A time in the future comes from a
clock that was set back; such a file is settled when two looks have found it the same. Object stores show whole objects
only, so theirs are settled at once.
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ortdeploy.facts.data import ArrivalPolicy, FileState, KnownFile
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.urls import is_url

FILE = "future-files.json"
"""In the state folder: files with a time in the future, as the last look has found them."""

_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The files of an input: `read` in the order of its rows. `changed` are known files that forbid a run.

    `gone` are files whose rows are accounted for and that are no longer there, which no run has noted yet.
    """

    read: tuple[FileState, ...]
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


def sort_arrivals(states: Sequence[FileState], known: Sequence[KnownFile], policy: ArrivalPolicy) -> Arrivals:
    """Compare the files that exist with those that earlier runs have read.

    Files of an unfinished run come first, in their order, and must be what they were. One whose rows are accounted
    for may go; it may come back with other content, which is a new file.
    """
    present = {state.path: state for state in states}
    names = {one.state.path for one in known}
    unfinished = [one for one in known if not one.done]
    changed = [one.state.path for one in unfinished if not _is_as_known(one, present.get(one.state.path))]
    begun = [present.get(one.state.path, one.state) for one in unfinished]
    new = [state for state in states if state.path not in names]
    gone = []
    for one in (one for one in known if one.done):
        now = present.get(one.state.path)
        if now is None:
            gone.append(one)
        elif not one.is_known(now) and (one.gone or policy.on_change == "append"):
            new.append(now)
        elif not one.is_known(now):
            changed.append(one.state.path)
    if policy.on_remove == "refuse":
        changed += [one.state.path for one in gone]
    order = {state.path: place for place, state in enumerate(states)}
    new.sort(key=lambda state: order[state.path])
    return Arrivals(
        read=(*begun, *new), changed=tuple(changed), gone=tuple(one.state.path for one in gone if not one.gone)
    )


def _is_as_known(one: KnownFile, now: FileState | None) -> bool:
    return now is not None and one.is_known(now)


@dataclass(slots=True)
class Settling:
    """Tells files that are settled from those that something may still write.

    `folder` is where it remembers files with a time in the future; None: nowhere, and they stay unsettled.
    """

    seconds: float
    folder: Path | None = None
    _before: dict[str, list[int]] = field(default_factory=dict)
    _future: dict[str, list[int]] = field(default_factory=dict)

    def settled(self, files: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the settled files, and the others; a file that has gone meanwhile is in neither."""
        if not self.seconds:
            return tuple(files), ()
        self._before = self._remembered()
        found: dict[bool, list[str]] = {True: [], False: []}
        now = time.time_ns()
        for path in files:
            with suppress(FileNotFoundError):
                found[is_url(path) or self._is_settled(path, os.stat(path), now)].append(path)  # noqa: PTH116  many
        if self._future != self._before:
            self._remember()
        return tuple(found[True]), tuple(found[False])

    def _is_settled(self, path: str, stat: os.stat_result, now: int) -> bool:
        latest = max(stat.st_mtime_ns, stat.st_ctime_ns)
        if latest <= now:
            return now - latest >= self.seconds * 1e9
        self._future[path] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        return self._before.get(path) == self._future[path]

    def _remembered(self) -> dict[str, list[int]]:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            if self.folder is not None:
                document = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
                if document["format_version"] == _FORMAT_VERSION:
                    return {path: list(state) for path, state in document["files"].items()}
        return {}

    def _remember(self) -> None:
        """Keep what was seen; if it cannot be written, such files wait."""
        if self.folder is not None and self.folder.is_dir():
            with suppress(OSError), open_whole(self.folder / FILE) as file:
                file.write(json.dumps({"format_version": _FORMAT_VERSION, "files": self._future}).encode())
