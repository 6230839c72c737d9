"""Rows of Arrow tables over several files; shared by Parquet and Arrow. Numbers and fixed-size lists are not copied."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.files.memory_budget import check_room
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, HIDDEN, Block, FailedRow
from ortdeploy.sources.files import shown
from ortdeploy.sources.joined import JoinedFiles
from ortdeploy.sources.protocol import Wanted, wanted_blocks
from ortdeploy.sources.tables.arrow_values import tensor_type
from ortdeploy.sources.tables.read_columns import Piece, ReadColumns
from ortdeploy.tensors.arrow_types import is_single, joint_arrow_type, plain_type, type_name
from ortdeploy.tensors.carried import TEXT
from ortdeploy.tensors.columns import Column, constant, join, pick
from ortdeploy.tensors.json_values import json_value
from ortdeploy.tensors.types import TensorType

if TYPE_CHECKING:
    import pyarrow as pa

PACKAGE = Package(module="pyarrow", name="pyarrow", extra="tables")
FIRST_ROWS = 64


class Table(Struct, frozen=True, kw_only=True):
    """An open file: how many rows it has, its columns, and its record batches from a row on.

    `batches` yields record batches that begin at or before that row, with the number of their first row in the file.
    `held_bytes` is the size of the largest piece that can only be decoded whole.
    """

    rows: int
    schema: "pa.Schema"
    held_bytes: int
    batches: Callable[[int, Sequence[str]], Iterator[tuple[int, "pa.RecordBatch"]]]


OpenTable = Callable[[str, int | None], Table]
"""Opens a file, with the job's memory limit. Raises TableError, and what the library raises."""


def probe_tables(open_table: OpenTable, files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the schema of every file, and join their columns by name."""
    last: pa.Schema | None = None
    joined = JoinedFiles(joint_arrow_type, str)
    rows = held = 0
    for path in files:
        table = open_table(path, facts.memory_limit)
        if last is None or not table.schema.equals(last):
            last = table.schema
            joined.add(path, [(one.name, plain_type(one.type)) for one in last])
        rows += table.rows
        held = max(held, table.held_bytes)
    columns = {name: TensorType() if kind is None else tensor_type(kind) for name, kind in joined.columns.items()}
    types = {name: _type_to_carry(kind, joined.kinds(name)) for name, kind in joined.columns.items()}
    return replace(joined.completed(facts, columns, types), rows=rows, held_bytes=held)


def _type_to_carry(joint: "pa.DataType | None", kinds: "Sequence[pa.DataType]") -> str | None:
    """Return the name of the type that holds a column beside results: text if no other does; None if none does."""
    if joint is not None:
        name = type_name(joint)
        return TEXT if name == "null" else name
    return TEXT if all(map(is_single, kinds)) else None


class TableSource(Struct, frozen=True):
    """Blocks over files that `open_table` opens."""

    files: Sequence[str]
    folder: str
    wanted: Wanted
    open_table: OpenTable

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield blocks that run across record batches and files."""
        if self.wanted.only is None:
            return self._blocks(start, sizes)
        return wanted_blocks(self._blocks, self.wanted.only, sizes)

    def _blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        pieces = self._pieces(start)
        left: Piece | None = None
        for size in sizes:
            taken: list[Piece] = []
            wanted = size
            while wanted and (left := left or next(pieces, None)) is not None:
                piece, left = left.cut(wanted)
                taken.append(piece)
                wanted -= piece.batch.num_rows
            if not taken:
                return
            block = self._block(taken, start)
            yield block
            start += block.count

    def _pieces(self, start: int) -> Iterator["Piece"]:
        """Yield the record batches from a row on."""
        first = self.wanted.first_row
        for path in self.files:
            table = self.open_table(path, self.wanted.memory_limit)
            if first + table.rows > start:
                names = [name for name in (*self.wanted.dtypes, *self.wanted.keys) if name in table.schema.names]
                for number, batch in table.batches(max(start - first, 0), list(dict.fromkeys(names))):
                    before = max(start - first - number, 0)
                    if before < batch.num_rows:
                        there = number + before
                        yield Piece(path=path, first=first + there, file_row=there, batch=batch.slice(before))
            first += table.rows

    def _block(self, pieces: Sequence["Piece"], start: int) -> Block:
        count = sum(piece.batch.num_rows for piece in pieces)
        table = ReadColumns(pieces, self.wanted)
        what = f"{count} rows from {shown(pieces[0].path, self.folder)} on, read together,"
        check_room(sum(piece.batch.nbytes for piece in pieces), what, self.wanted.memory_limit)
        keys = {name: self._key(name, pieces, table) for name in self.wanted.keys if name not in self.wanted.dtypes}
        columns = table.read()
        carried = {name: table.values(name) for name in self.wanted.keys if name in table.changed}
        if not table.without:
            columns |= keys
            rows: Sequence[int] = range(start, start + count)
            return Block(start=start, count=count, rows=rows, columns=columns, failed=[], carried=carried)
        kept = [place for place in range(count) if place not in table.without]
        paths = [shown(piece.path, self.folder) for piece in pieces for _ in range(piece.batch.num_rows)]
        known = {name: keys[name] if name in keys else self._key(name, pieces, table) for name in self.wanted.keys}
        failed = [
            FailedRow(
                row=start + place,
                source=paths[place],
                stage="read",
                code=code,
                message=message,
                key={name: json_value(one[place]) for name, one in known.items() if name not in HIDDEN},
                path=paths[place],
                file_row=int(keys[FILE_ROW][place]) if FILE_ROW in keys else None,
            )
            for place, (code, message) in sorted(table.without.items())
        ]
        chosen = {**columns, **{name: pick(column, kept) for name, column in keys.items()}}
        rows = [start + place for place in kept]
        carried = {name: pick(column, kept) for name, column in carried.items()}
        return Block(start=start, count=count, rows=rows, columns=chosen, failed=failed, carried=carried)

    def _key(self, name: str, pieces: Sequence["Piece"], table: "ReadColumns") -> Column:
        if name in table.names:
            return table.values(name)
        if name in {"path", FILE_PATH}:
            return join([constant(shown(piece.path, self.folder), piece.batch.num_rows) for piece in pieces])
        firsts = [piece.file_row if name == FILE_ROW else piece.first for piece in pieces]
        return join([np.arange(one, one + piece.batch.num_rows) for one, piece in zip(firsts, pieces, strict=True)])
