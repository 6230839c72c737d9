"""Runs that ended their process: they hung, or native code crashed. Their rows are not run together again."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec import Struct

from ortdeploy.results.rows import StageError


class CrashedRun(Struct, frozen=True, kw_only=True):
    """The rows of one run, by their numbers in the job, and how it crashed; None if it hung."""

    rows: frozenset[int]
    crash: str | None = None

    def stops(self, rows: AbstractSet[int]) -> bool:
        """Return whether these rows must not run together again.

        Each crash costs a process and the rows since the last commit, so rows that crashed together run one by one.
        """
        if self.crash is not None and len(rows) > 1:
            return not self.rows.isdisjoint(rows)
        return self.rows.issubset(rows)

    def error(self) -> StageError:
        """Return the error of a batch with these rows, which is not run."""
        if self.crash is None:
            return StageError("run", "timed-out", "the run took longer than run_timeout; its process was ended")
        return StageError("run", "crashed", f"the process that ran it {self.crash}")


CrashedRuns = tuple[CrashedRun, ...]


def encode_crashed_runs(runs: Mapping[str, Sequence[CrashedRun]]) -> dict[str, list[Any]]:
    """Return the runs of each job for a message to a child process."""
    return {job: [[sorted(one.rows), one.crash] for one in known] for job, known in runs.items()}


def decode_crashed_runs(message: Mapping[str, Sequence[Any]]) -> dict[str, CrashedRuns]:
    """Return the runs of each job from a message."""
    return {
        job: tuple(CrashedRun(rows=frozenset(rows), crash=crash) for rows, crash in known)
        for job, known in message.items()
    }
