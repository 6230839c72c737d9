"""Counts rows that the next apply runs again because their files have changed.

A file is read only if its size is what it was and its time is not.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from ortdeploy.facts.data import ArrivalPolicy, FileState, KnownFile
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.spec import JobSpec
from ortdeploy.sources.file_selection import KnownContents, sort_arrivals
from ortdeploy.sources.files import full_path, state_in_stat


def may_run_again(job: JobSpec) -> bool:
    """Return whether rows of a job's changed files run again."""
    return job.input.arrivals.on_change == "rerun"


def local_files(folder: str, known: Sequence[KnownFile]) -> list[str]:
    """Return the full paths of files that a job has taken up, without those behind URLs."""
    return [full_path(folder, one.state.path) for one in known if not is_url(one.state.path)]


def rows_of_changed_files(
    folder: str, known: Sequence[KnownFile], contents: Callable[[], Mapping[FileState, bytes]]
) -> int:
    """Return how many rows the files had that have changed since a job ran them; `contents` are what they held then.

    Rows of which the ledger already notes that they run again are not counted.
    """
    done = [one for one in known if one.done and one.rerun is None and not is_url(one.state.path)]
    states = (_state(one.state.path, full_path(folder, one.state.path)) for one in done)
    present = [state for state in states if state is not None]
    same = KnownContents(folder, contents).are_in
    return sort_arrivals(present, done, ArrivalPolicy(on_change="rerun"), holds_the_same=same).rerun_rows


def _state(path: str, full: str) -> FileState | None:
    """Return a file's state; None if it is gone, or cannot be looked at, which an apply will report."""
    try:
        found = os.stat(full)  # noqa: PTH116  a hundred thousand of them
    except OSError:
        return None
    size, mtime_ns = state_in_stat(found)
    return FileState(path=path, size=size, mtime_ns=mtime_ns)
