"""Text: one row a line, column `text`, UTF-8 without the line's end. Empty lines are rows too."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.room import LINE_OF_TEXT
from ortdeploy.records import ordered_record
from ortdeploy.results.rows import Block
from ortdeploy.sources.files import shown
from ortdeploy.sources.opened import Lines, open_binary
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.row_index import Mark, NoIndexes, rows_from
from ortdeploy.sources.rows import RawRow, RowError, block_rows
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".txt",)
FIRST_ROWS = 64
PACKAGE = None

COLUMN = "text"
"""The name of the one column that a text file has."""


def probe(_files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Return the facts with the column's name; the number of lines is unknown without reading."""
    return replace(facts, columns={COLUMN: TensorType("string", (ROWS,))})


@ordered_record
class _TextSource:
    files: Sequence[str]
    folder: str
    wanted: Wanted

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        indexes = self.wanted.indexes or NoIndexes()
        read = partial(read_rows, folder=self.folder, limit=self.wanted.memory_limit)
        lines = rows_from(self.files, read, indexes, start - self.wanted.first_row)
        return block_rows(lines, _decode, self.wanted, start, sizes)


def read_rows(path: str, mark: Mark, *, folder: str, limit: int | None) -> Iterator[RawRow]:
    """Yield the lines of a file from a mark on."""
    name, offset = shown(path, folder), mark.offset
    with open_binary(path, name) as file:
        file.seek(offset)
        lines = Lines(name, LINE_OF_TEXT, limit).read(file, mark.line)
        for number, line in enumerate(lines, mark.row):
            yield RawRow(name, f":{number + 1}", line, number, (number, offset))
            offset += len(line)


def _decode(raw: RawRow) -> dict[str, Any]:
    try:
        return {COLUMN: raw.value.removesuffix(b"\n").removesuffix(b"\r").decode()}
    except UnicodeDecodeError as error:
        raise RowError("the line is not UTF-8 text", "not-utf8") from error


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[_TextSource]:
    """Open text files as one run of lines."""
    yield _TextSource(files, folder, wanted)
