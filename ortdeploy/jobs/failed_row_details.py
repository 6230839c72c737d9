"""Completes failed rows with what makes their lines in `_failed.jsonl` replayable: run, plan and the file's digest."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.urls import is_url
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.results.rows import FailedRow
from ortdeploy.sources.files import file_states, full_path

MOST_HASHED = 1024**3
"""Bytes of the largest input file whose digest is computed, because the file is read once more for it."""


class InputDigests:
    """The digests of input files as they are now, each computed once per state."""

    def __init__(self, context: JobContext) -> None:
        """Take the job; no file is read yet."""
        self._folder = context.plan.folder
        self._cache = DigestCache(context.output.ledger.state_dir)
        self._known: dict[FileState, str | None] = {}

    def of(self, state: FileState) -> str | None:
        """Return the digest of a file in a state; None if it is no longer in it, or too large to read again."""
        if state not in self._known:
            self._known[state] = self._read(state)
        return self._known[state]

    def _read(self, state: FileState) -> str | None:
        if is_url(state.path) or state.size > MOST_HASHED:
            return None
        path = full_path(self._folder, state.path)
        try:
            digest = self._cache.digest(Path(path))
            return digest if file_states([path], self._folder) == (state,) else None
        except (OSError, OrtdeployError):
            return None


class DeadLetters:
    """Completes the failed rows of one run."""

    def __init__(self, context: JobContext, states: Sequence[FileState]) -> None:
        self._run = context.run_id
        self._plan = context.plan_digest
        self._digests = InputDigests(context)
        self._files = states
        self._place = 0

    def completed(self, rows: Sequence[FailedRow]) -> list[FailedRow]:
        """Return failed rows with run, plan and the digest of their file."""
        files = self._states({row.path for row in rows})
        return [replace(row, run=self._run, plan=self._plan, sha256=self._digest(files.get(row.path))) for row in rows]

    def _states(self, paths: set[str]) -> dict[str, FileState]:
        """Return files by path. The search continues where the last one ended, because rows fail in their order."""
        found: dict[str, FileState] = {}
        for place in chain(range(self._place, len(self._files)), range(self._place)):
            if len(found) == len(paths):
                break
            if (state := self._files[place]).path in paths:
                found[state.path], self._place = state, place
        return found

    def _digest(self, state: FileState | None) -> str | None:
        return None if state is None else self._digests.of(state)
