"""How many rows of a job may fail: of those that it runs, and one after the other.

The rows of files that earlier applies have finished do not count: a million good ones of the last years would allow ten
thousand bad ones today, and a bad hour of then would end every job of now. Those of a run that ended early do, until
its files are through. As a run may have few rows, it is enough if a share is kept over them and the last ones before.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.parts.position import Earlier
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.rows import Block, FailedRow
from ortdeploy.units import allowed_count, rows_lately


class BudgetError(OrtdeployError):
    """More rows failed than the job's `errors:` allow."""


class ErrorBudget:
    """Counts a job's failed rows."""

    def __init__(self, job: RunJob, failed: int, in_a_row: int = 0, *, earlier: Earlier | None = None) -> None:
        """Begin with the rows that failed in earlier runs; the last `in_a_row` of them one after the other.

        `earlier` are those of them that do not count: they failed in files that are finished.
        """
        self._job = job
        self._in_a_row = in_a_row
        self._earlier = earlier or Earlier()
        self.failed = failed

    @property
    def counted(self) -> int:
        """The failed rows that count."""
        return self.failed - self._earlier.failed

    def note(self, block: Block, failed: Sequence[FailedRow]) -> None:
        """Count a block's failed rows, in their order. Raises BudgetError if they are too many."""
        self.failed += len(failed)
        longest = self._longest_row_of(block, failed)
        if not failed:
            return
        last = failed[-1]
        limit = self._limit(self._job.input.rows)
        if limit is not None and self.counted > limit:
            rows, allowed = f"{self.counted} row{'' if self.counted == 1 else 's'}", self._job.errors.max_failed
            raise BudgetError(
                f"{rows} failed and errors: {{max_failed: {allowed}}} allows {limit}. "
                f"The last: {last.source}: {last.message}"
            )
        most = self._job.errors.max_consecutive
        if most is not None and longest > most:
            raise BudgetError(
                f"{longest} rows failed one after the other and errors: {{max_consecutive: {most}}} allows {most}. "
                f"The last: {last.source}: {last.message}"
            )

    def _longest_row_of(self, block: Block, failed: Sequence[FailedRow]) -> int:
        """Return the longest series of failed rows, up to the end of this block."""
        longest, before = self._in_a_row, block.start - 1
        for row in failed:
            self._in_a_row = self._in_a_row + 1 if row.row == before + 1 else 1
            longest, before = max(longest, self._in_a_row), row.row
        if before != block.start + block.count - 1:
            self._in_a_row = 0
        return longest

    def judge(self, done: int) -> None:
        """Judge the whole job, which ends before the row `done`. Raises BudgetError."""
        limit = self._limit(done)
        if limit is not None and self.counted > limit:
            rows, allowed = done - self._job.input.first_row, self._job.errors.max_failed
            raise BudgetError(f"{self.counted} of {rows} rows failed; max_failed {allowed} allows {limit}")

    def _limit(self, rows: int | None) -> int | None:
        """Return how many rows may fail; a share of an unknown number of rows is judged at the end."""
        allowed = self._job.errors.max_failed
        if rows is None:
            return allowed if isinstance(allowed, int) else None
        before = self._job.input.first_row
        lately = rows_lately(allowed, before)
        with_these = allowed_count(allowed, rows - before + lately) - self._earlier.lately
        return max(with_these, allowed_count(allowed, rows - before))


def earlier_of(job: RunJob, failed: Iterable[int]) -> Earlier:
    """Return which of the numbers of failed rows are those of earlier runs."""
    first = job.input.first_row
    before = [row for row in failed if row < first]
    since = first - rows_lately(job.errors.max_failed, first)
    return Earlier(failed=len(before), lately=sum(row >= since for row in before))


def failed_before(ledger: Ledger, output: str, job: RunJob) -> Earlier:
    """Return how many rows of earlier runs have failed, of those that the ledger has not forgotten."""
    return earlier_of(job, chain.from_iterable(ledger.failed_rows(output).values()))
