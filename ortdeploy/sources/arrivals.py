"""Chooses the files that the next run of a recurring job reads, while files arrive, change and go.

A file is settled if nothing has changed it for the time that the manifest says. The later of its two times counts: a
copy may keep the old modification time, but not the time of the change of its inode. A time in the future comes from a
clock that was set back; such a file is settled when two looks have found it the same. Object stores show whole objects
only, so theirs are settled at once.
"""

import json
import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from ortdeploy.facts.data import ArrivalPolicy, FileState, KnownFile
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.urls import is_url
from ortdeploy.records import mutable_record, record

FILE = "future-files.json"
"""In the state folder: files with a time in the future, as the last look has found them."""

_FORMAT_VERSION = 1


@record
class Arrivals:
    """The files of an input: `read` in the order of its rows. `changed` are known files that forbid a run.

    `rerun` are known files whose content has changed and whose rows run again, `rerun_rows` in all.

    `gone` are files whose rows are accounted for and that are no longer there, which no run has noted yet.
    """

    read: tuple[FileState, ...]
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    rerun: tuple[FileState, ...] = ()
    rerun_rows: int = 0


def sort_arrivals(
    states: Sequence[FileState],
    known: Sequence[KnownFile],
    policy: ArrivalPolicy,
    unsettled: Collection[str] = (),
) -> Arrivals:
    """Compare the settled files that exist with those that earlier runs have read; `unsettled` are paths of the others.

    Files of an unfinished run come first, in their order, and must be what they were unless their rows may run again.
    One whose rows are accounted for may go; it may come back with other content, which is a new file.
    """
    present = {state.path: state for state in states}
    names = {one.state.path for one in known}
    unfinished = [one for one in known if not one.done]
    rerun = [one for one in unfinished if policy.on_change == "rerun" and _is_other(one, present.get(one.state.path))]
    again = {one.state.path for one in rerun}
    unfinished = [one for one in unfinished if one.state.path not in again]
    changed = [one.state.path for one in unfinished if not _is_as_known(one, present.get(one.state.path))]
    begun = [present.get(one.state.path, one.state) for one in unfinished]
    new = [state for state in states if state.path not in names]
    gone = []
    for one in (one for one in known if one.done):
        now = present.get(one.state.path)
        if now is None and one.state.path in unsettled:  # it is there, and what it becomes is the next run's business
            continue
        if now is None:
            gone.append(one)
        elif one.rerun is None and one.is_known(now):
            continue
        elif policy.on_change == "append" or _is_another(one, now):
            new.append(now)
        elif policy.on_change == "rerun" and one.span is not None:
            rerun.append(one)
        else:
            changed.append(one.state.path)
    if policy.on_remove == "refuse":
        changed += [one.state.path for one in gone]
    to_run = {state.path for state in new}
    new = [state for state in states if state.path in to_run]  # in their order
    return Arrivals(
        read=(*begun, *new),
        changed=tuple(changed),
        gone=tuple(one.state.path for one in gone if not one.gone),
        rerun=tuple(present[one.state.path] for one in rerun),
        rerun_rows=sum(one.span[1] for one in rerun if one.span is not None),
    )


def _is_other(one: KnownFile, now: FileState | None) -> bool:
    return now is not None and not one.is_known(now)


def _is_another(one: KnownFile, now: FileState) -> bool:
    """Return whether a file went and came back with content that none of its rows were run from."""
    return one.gone and not one.is_known(now) and now != one.rerun


def _is_as_known(one: KnownFile, now: FileState | None) -> bool:
    return now is not None and one.is_known(now)


def rows_before(read: Sequence[FileState], known: Sequence[KnownFile], first_row: int) -> int:
    """Return how many rows of the first file that is read come before a row: it was run in part, and others changed."""
    begun = [one for one in known if not one.done and one.span is not None and read and one.state.path == read[0].path]
    return max(0, first_row - begun[0].span[0]) if begun and begun[0].span else 0


@mutable_record
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
