"""Sizes of a job's rows between its source and its sink: in memory, and on disk."""

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.facts.preflight import RowRoom
from ortdeploy.feeds.in_flight import block_bytes, on_their_way


class RowSizes(Struct, frozen=True, kw_only=True):
    """Sizes of one row of a job, in bytes, from which memory and disk for any number of rows follow.

    `batch` rows run together, and `runs` runs at once. `read` is the size of a row as it is read; if blocks are
    `joined` of smaller ones, these are there beside it for a while, and holes of theirs in the heap. `result` is
    its size as it is written; None if the graph leaves that open. `read_ahead`: bytes of a file that are read at
    once. The sink holds `block_copies` of what it writes at once: a block, `piece` bytes of one, or rows of `gathered`
    bytes. It holds `part_copies` of a part. `on_disk`: the results have the same size on disk. Decoding rows takes
    `decoding` for a while; then prepare steps take what they have `made` of each row of a block, or of one at a time if
    that is `by_row`, and `scratch`. Blocks that are prepared `beside` one take that much at most.
    """

    batch: int
    runs: int
    read: int
    joined: bool
    result: int | None
    read_ahead: int
    rows_per_part: int
    block_copies: int
    piece: int
    gathered: int
    part_copies: int
    on_disk: bool
    decoding: int = 0
    made: int = 0
    by_row: bool = False
    scratch: int = 0
    beside: int = 0

    def of_rows(self, room: RowRoom) -> "RowSizes":
        """Return the sizes for rows of which the first take this room."""
        return replace(
            self,
            read=max(self.read, room.read + room.fed),
            decoding=room.decoding,
            made=room.made,
            by_row=room.by_row,
            scratch=room.scratch,
            beside=room.beside,
        )

    def bytes(self, rows: int | None) -> int:
        """Return the bytes of blocks on their way or of the part being written; `rows` None: only a batch is known."""
        total = rows or self.batch
        result = self.result or 0
        row = max(self.read + result, 1)
        under_way = min(on_their_way(self.runs, self.batch, row), total)
        batch_read = max(self.batch * self.read, 1)
        requests = self.read_ahead // batch_read
        pieces = 2 * requests * batch_read if requests > 1 else 0  # one that is being used up, and the next one
        before_growing = 2 * self.batch  # blocks begin with one batch; the second is asked for before the first has run
        at_once = min(max(self.batch, min(block_bytes(self.runs) // row, total - before_growing)), total)
        preparing = self.made * (1 if self.by_row else at_once) + self.scratch
        beside = min(self.beside, (total - at_once) * (self.read + self.made + self.scratch))
        decoding = max(self.decoding, 2 * at_once * self.read if self.joined else 0)
        for_a_while = decoding + preparing + beside if beside else max(decoding, preparing)
        read = min(under_way * self.read + pieces, total * self.read) + for_a_while
        of_part = min(self.rows_per_part, total)
        written_at_once = (of_part if self.gathered else at_once) * result
        if limit := self.gathered or self.piece:
            written_at_once = min(max(limit, result), written_at_once)
        written = written_at_once * self.block_copies
        held = min(under_way + of_part * self.part_copies, max(self.part_copies, 1) * total)
        return read + held * result + (written_at_once if self.gathered else 0) + written

    def disk(self, first_row: int, rows: int | None, committed: int) -> int | None:
        """Return what is still to be written, of the rows from the first on; None if it depends on the values."""
        if self.result is None or rows is None or not self.on_disk:
            return None
        return (first_row + rows) * self.result - committed * self.result
