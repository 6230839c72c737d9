"""Notes what the input files of a job held whose rows are committed, so that a copy of one is known as a copy.

Files whose source has not read them whole are read once more for that, from the system's cache as a rule. Large files
are left out, and all files behind the first gigabyte, so that no job takes much longer for it. What is not noted is
told from a new file by size and time.
"""

from collections.abc import Iterator, Sequence

from ortdeploy.facts.contents import FileContent, FileContents
from ortdeploy.facts.data import FileState
from ortdeploy.files.digests import content_digest
from ortdeploy.files.urls import is_url
from ortdeploy.running.job_context import JobContext
from ortdeploy.sources.files import full_path

_MOST_OF_A_RUN = 1024**3
"""Bytes that are read after one run."""


def note_contents(context: JobContext, files: Sequence[FileState]) -> None:
    """Note the digests of files, before the ledger says that their rows are accounted for. Raises OrtdeployError."""
    context.ledger.note_contents(context.output, contents_of(context, files))


def contents_of(context: JobContext, files: Sequence[FileState]) -> FileContents:
    """Return the digests of files that are to be noted; those of a job whose files are not compared are none."""
    is_compared = context.step.input.upstream is None and context.most_rows is None
    return FileContents.of(_contents(files, context.plan.folder) if is_compared else ())


def _contents(files: Sequence[FileState], folder: str) -> Iterator[FileContent]:
    left = _MOST_OF_A_RUN
    for state in files:
        left -= state.size
        if left < 0:
            return
        digest = None if is_url(state.path) else content_digest(full_path(folder, state.path), *state[1:])
        if digest is not None:
            yield state, digest
