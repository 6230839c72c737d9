"""Rows of files whose columns have other names than the job knows them by.

A file of another job may have a column `row`, with the numbers that its rows have there. In the job that reads it,
`row` is the number that a row has here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ortdeploy.records import ordered_record
from ortdeploy.results.rows import Block, FailedRow
from ortdeploy.sources.protocol import Source, Wanted
from ortdeploy.tensors.columns import numbers

_ROW = "row"


def in_files(wanted: Wanted, names: Mapping[str, str]) -> Wanted:
    """Return what to read of the files; `names` are by the column's name here that in the files."""
    return replace(
        wanted,
        dtypes={names.get(name, name): dtype for name, dtype in wanted.dtypes.items()},
        keys=tuple(names.get(name, name) for name in wanted.keys if name != _ROW),
        missing={names.get(name, name): filler for name, filler in wanted.missing.items()},
    )


@ordered_record
class Renamed:
    """A source whose columns get the names that are wanted."""

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
            yield replace(block, columns=columns, failed=[self._named(row) for row in block.failed])

    def _named(self, row: FailedRow) -> FailedRow:
        """Return a failed row with the keys that could be read of it."""
        known = {**row.key, **{name: row.key[old] for name, old in self.names.items() if old in row.key}}
        known[_ROW] = row.row
        return replace(row, key={name: known[name] for name in self.wanted.keys if name in known})
