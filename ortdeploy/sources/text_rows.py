"""A source of text files whose rows are found by an index; shared by CSV, JSON lines and text."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from ortdeploy.results.rows import Block
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.row_index import NoIndexes, ReadRows, rows_from
from ortdeploy.sources.rows import Decode, block_rows, one_by_one


class TextRows(Struct, frozen=True):
    """The rows of some files, which `read` reads.

    `as_written` decodes rows without rounding a number, if `decode` may.
    """

    read: ReadRows
    decode: Decode
    files: Sequence[str]
    wanted: Wanted
    as_written: Decode | None = None

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield blocks; reading begins at the last place of the index before the first row."""
        indexes = self.wanted.indexes or NoIndexes()
        raw_rows = rows_from(self.files, self.read, indexes, start - self.wanted.first_row)
        decode = partial(one_by_one, decode=self.decode, wanted=self.wanted)
        return block_rows(raw_rows, decode, self.wanted, start, sizes, self.as_written)
