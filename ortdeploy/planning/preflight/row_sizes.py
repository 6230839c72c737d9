"""Sizes of a job's rows between its source and its sink: in memory, and on disk."""

from ortdeploy.feeds.in_flight import LEAST, SMALL_BYTES
from ortdeploy.records import record

ROWS_AND_RESULTS = "rows and results"
"""The part of a job's memory that follows from its rows."""


@record
class RowSizes:
    """Sizes of one row of a job, in bytes, from which memory and disk for any number of rows follow.

    `batch` rows run together, and `runs` runs at once. `read` is the size of a row as it is read, `result` its size as
    it is written; None if the graph leaves that open. The sink holds copies of a block, or of a part. `on_disk`: the
    results have the same size on disk.
    """

    batch: int
    runs: int
    read: int
    result: int | None
    rows_per_part: int
    block_copies: int
    part_copies: int
    on_disk: bool

    def bytes(self, rows: int | None) -> int:
        """Return the bytes of blocks on their way or of the part being written; `rows` None: only a batch is known."""
        total = rows or self.batch
        result = self.result or 0
        blocks = (LEAST * self.runs + 3) * self.batch
        small = SMALL_BYTES // max(self.read + result, 1)
        on_their_way = min(max(blocks, small), total) * (self.read + result)
        written = min(self.batch, total) * result * self.block_copies
        part = min(self.rows_per_part, total) * result
        return max(on_their_way + written + part * bool(self.part_copies), part * self.part_copies)

    def disk(self, first_row: int, rows: int | None, committed: int) -> int | None:
        """Return what is still to be written, of the rows from the first on; None if it depends on the values."""
        if self.result is None or rows is None or not self.on_disk:
            return None
        return (first_row + rows) * self.result - committed * self.result
