"""Reads what the input files of a job hold whose rows are committed, so that a copy of one is known as a copy.

Each file is noted with the first part that has rows of it, because the run may be killed after any part. Files whose
source has not read them whole are read once more for that, from the system's cache as a rule. Large files are left out,
and all files behind the first gigabyte, so that no job takes much longer for it. What is not noted is told from a new
file by size and time.
"""

from collections.abc import Iterable, Iterator

from ortdeploy.facts.contents import FileContent
from ortdeploy.facts.data import FileState
from ortdeploy.files.digests import content_digest
from ortdeploy.files.urls import is_url
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.sources.files import full_path

_MOST_OF_A_RUN = 1024**3
"""Bytes that are read after one run."""


class InputContents:
    """Digests of the input files of one run. Those of a job whose files are not compared are none."""

    def __init__(self, folder: str, *, are_compared: bool) -> None:
        self._folder = folder
        self._are_compared = are_compared
        self._left = _MOST_OF_A_RUN

    @classmethod
    def for_job(cls, context: JobContext) -> "InputContents":
        """Return those of a job that this process runs."""
        are_compared = context.step.input.upstream is None and context.row_limit is None
        return cls(context.plan.folder, are_compared=are_compared)

    def of(self, files: Iterable[FileState]) -> Iterator[FileContent]:
        """Yield what files hold, each as it is in this state; those that are not to be read are left out."""
        for state in files if self._are_compared else ():
            self._left -= state.size
            if self._left < 0:
                return
            digest = None if is_url(state.path) else content_digest(full_path(self._folder, state.path), *state[1:])
            if digest is not None:
                yield state, digest
