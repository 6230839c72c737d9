"""How many rows are read together: whole batches, more of them if they are quick, never across a part's border."""

from collections.abc import Iterator

from ortdeploy.feeds.in_flight import block_bytes
from ortdeploy.plan.steps import RunJob

TARGET_SECONDS = 0.05
"""Seconds that reading or running a block takes, about: handing it from thread to thread costs a millisecond of Python.

Larger blocks of rows that are read one by one are no quicker: their objects leave the processor's caches, and take
megabytes.
"""

MOST_BATCHES = 256


def part_border(job: RunJob, row: int) -> int:
    """Return the row before which the part that holds `row` ends, unless the input ends earlier.

    Borders are counted from the job's first row, or from the first row that this deployment makes. If an older
    ortdeploy stopped within a batch, the rest of that batch is a part, and borders are counted from its end.
    """
    first = max(job.input.first_row, job.output.upgraded_at)
    odd = (row - first) % job.batching.read_size
    begun = (row - odd - first) % job.batching.rows_per_part
    return row - begun + job.batching.rows_per_part


class BlockSizes:
    """The sizes of a job's blocks. Which rows a run gets does not depend on them, so neither do the results."""

    def __init__(self, job: RunJob, start: int, sessions: int) -> None:
        """Begin at a row with blocks of one batch, for some sessions."""
        self._bytes = block_bytes(sessions)
        self._unit = job.batching.read_size
        self._grows = job.adapters.column is None  # else rows are sorted by adapter within a block
        self._job = job
        self._row = start
        self._batches = 1

    def __iter__(self) -> Iterator[int]:
        """Yield the number of rows of each block."""
        while True:
            size = min(self._unit * self._batches, part_border(self._job, self._row) - self._row)
            yield size
            self._row += size

    def learn(self, rows: int, seconds: float, size_bytes: int) -> None:
        """Note how long reading a block or its runs took, whichever was longer, and how large it was."""
        if not self._grows or not rows:
            return
        batches = rows / self._unit
        by_time = TARGET_SECONDS * batches / max(seconds, 1e-9)
        by_size = self._bytes * batches / max(size_bytes, 1)
        self._batches = max(1, min(int(by_time), int(by_size), MOST_BATCHES, self._batches * 4))
