"""Batching: how many rows of a job are read, run and written together, and every number that follows from it."""

from msgspec import Struct
from msgspec.structs import force_setattr, replace

SEARCHED = tuple(2**power for power in range(11))
"""The batch sizes that `auto` tries: 1 to 1024 rows."""


class Batching(Struct, frozen=True, kw_only=True):
    """How many rows of a job are read, run and written together.

    `size` is the number of rows of one run; None: each row is a run of its own, without an axis for rows. `auto`: the
    search for a better size begins at this one, and tries no more than `most` rows, if that says a number. `fixed` is
    the number of rows that the graph takes, if it takes only one. `last` says what happens to a batch that the end of
    the input leaves short: it is run as it is (short), filled with copies of its last row (pad), or not run (drop).
    `batches_per_read`: several batches are read together if rows are sorted by adapter. `rows_per_part` is rounded up
    to whole reads.
    """

    size: int | None
    auto: bool
    fixed: int | None
    last: str
    batches_per_read: int
    rows_per_part: int
    most: int | None = None

    def __post_init__(self) -> None:
        """Round the rows of a part up, so that no read crosses a part's border."""
        reads = -(-self.rows_per_part // self.read_size)
        force_setattr(self, "rows_per_part", reads * self.read_size)

    @property
    def run_size(self) -> int:
        """The number of rows of one run."""
        return self.size or 1

    @property
    def read_size(self) -> int:
        """The number of rows that are read together at least."""
        return self.run_size * self.batches_per_read

    @property
    def pad_to(self) -> int | None:
        """The number of rows that a short batch is filled up to; None: it is not filled."""
        if self.fixed is not None:
            return self.fixed
        return self.size if self.last == "pad" else None

    def resized(self, size: int) -> "Batching":
        """Return what follows from another batch size."""
        return replace(self, size=size)

    def bounded(self, most: int | None) -> "Batching":
        """Return what follows if no batch that is searched for may have more rows."""
        return self if most is None else replace(self, most=most, size=min(self.run_size, most))

    def rows_run(self, rows: int) -> int:
        """Return how many of the first `rows` rows are run if the input ends behind them."""
        return rows - rows % self.run_size if self.last == "drop" else rows

    def short_batch(self, rows: int) -> int:
        """Return the number of rows of the short batch that is run at the end of `rows` rows; 0: there is none."""
        return rows % self.run_size if self.last == "short" else 0

    def most_run(self, rows: int | None) -> int:
        """Return the most rows that one run has, of `rows` rows in all, if these are known."""
        if not rows or self.pad_to is not None:
            return self.run_size
        return min(self.run_size, rows)

    def sizes_run(self, rows: int | None) -> tuple[int, ...]:
        """Return the known numbers of rows that runs have, of `rows` rows in all, if these are known."""
        if self.size is None:
            return ()
        whole = rows is None or rows >= self.size or self.pad_to is not None
        rest = 0 if rows is None else self.short_batch(rows)
        return tuple(size for size in (self.size if whole else 0, rest) if size)
