"""A source whose columns have the types that they have in all files, and in all parts of the output.

A row with a value that does not fit fails alone, by name.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import as_key
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, HIDDEN, Block, FailedRow
from ortdeploy.sources.protocol import Source, Wanted
from ortdeploy.tensors.carried import fit, fit_elements
from ortdeploy.tensors.columns import Column, pick
from ortdeploy.tensors.json_values import json_value

CODE = "unfit-value"


class Fitted(Struct, frozen=True):
    """Blocks of a source: columns that are `fed` in element types, `carried` ones in types of parts.

    Texts are read as numbers and booleans if they are to be parsed.
    """

    source: Source
    wanted: Wanted
    fed: Mapping[str, str]
    carried: Mapping[str, str]
    parse: bool

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield the source's blocks."""
        return map(self._fitted, self.source.blocks(start, sizes))

    def _fitted(self, block: Block) -> Block:
        columns, carried = dict(block.columns), dict(block.carried)
        unfit: dict[int, str] = {}
        for name, kind in self.carried.items():
            target = carried if name in carried or name in self.wanted.dtypes else columns
            target[name], found = fit(block.key(name), kind, parse=self.parse)
            unfit |= {place: _why(name, why) for place, why in found.items()}
        for name, kind in self.fed.items():
            columns[name], found = fit_elements(columns[name], kind)
            unfit |= {place: f'"{name}": {why}, the type of this column in all files' for place, why in found.items()}
        fitted = replace(block, columns=columns, carried=carried)
        return _without(fitted, unfit, self._keys(block)) if unfit else fitted

    def _keys(self, block: Block) -> dict[str, Column]:
        """Return the keys of a block as they were read."""
        return {name: block.key(name) for name in self.wanted.keys if name in {*block.columns, *block.carried}}


def _why(name: str, why: str) -> str:
    return (
        f'"{name}": {why}, the type of this column in all parts. To write other values too, give it one that holds '
        f"them, as in types: {{{as_key(name)}: text}} under output:, and apply with --new-run"
    )


def _without(block: Block, unfit: Mapping[int, str], read: Mapping[str, Column]) -> Block:
    """Return a block without the rows that do not fit, which are failed rows then; `read` are columns as read."""
    kept = [place for place in range(len(block.rows)) if place not in unfit]
    failed = [_failed(block, place, unfit[place], read) for place in sorted(unfit)]
    return replace(
        block,
        rows=[block.rows[place] for place in kept],
        columns={name: pick(column, kept) for name, column in block.columns.items()},
        carried={name: pick(column, kept) for name, column in block.carried.items()},
        failed=sorted([*block.failed, *failed], key=lambda row: row.row),
        places=[block.places[place] for place in kept] if block.places else (),
    )


def _failed(block: Block, place: int, why: str, read: Mapping[str, Column]) -> FailedRow:
    path = str(read[FILE_PATH][place]) if FILE_PATH in read else ""
    return FailedRow(
        row=block.rows[place],
        source=block.source(place),
        stage="read",
        code=CODE,
        message=why,
        key={name: json_value(column[place]) for name, column in read.items() if name not in HIDDEN},
        path=path,
        file_row=int(read[FILE_ROW][place]) if FILE_ROW in read else None,
    )
