"""Renames columns of files that have other names in the job that reads them.

A file of another job may have a column `row`, with row numbers of that job. In the job that reads it, `row` means a
row's number in this job.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.results.rows import Block, FailedRow
from ortdeploy.sources.protocol import Source, Wanted
from ortdeploy.tensors.columns import numbers

_ROW = "row"


def in_files(wanted: Wanted, names: Mapping[str, str]) -> Wanted:
    """Return what to read with the names in the files; `names` has them by the names in the job."""
    return replace(
        wanted,
        dtypes={names.get(name, name): dtype for name, dtype in wanted.dtypes.items()},
        keys=tuple(names.get(name, name) for name in wanted.keys if name != _ROW),
        types={names.get(name, name): kind for name, kind in wanted.types.items()},
        missing={names.get(name, name): filler for name, filler in wanted.missing.items()},
    )


class Renamed(Struct, frozen=True):
    """A source whose columns are renamed to what the job calls them."""

    source: Source
    wanted: Wanted
    names: Mapping[str, str]

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield the source's blocks."""
        asked = dict.fromkeys((*self.wanted.dtypes, *self.wanted.keys))
        for block in self.source.blocks(start, sizes):
            found = block.columns
            columns = {name: found[self.names.get(name, name)] for name in asked if name != _ROW}
            if _ROW in asked:
                columns[_ROW] = numbers(block.rows)
            olds = {name: self.names.get(name, name) for name in asked}
            carried = {name: block.carried[old] for name, old in olds.items() if old in block.carried}
            failed = [self._named(row) for row in block.failed]
            yield replace(block, columns=columns, failed=failed, carried=carried)

    def _named(self, row: FailedRow) -> FailedRow:
        """Return a failed row with the job's names for the keys that could be read."""
        known = {**row.key, **{name: row.key[old] for name, old in self.names.items() if old in row.key}}
        known[_ROW] = row.row
        return replace(row, key={name: known[name] for name in self.wanted.keys if name in known})
