"""Text: one row a line, column `text`, UTF-8 without the line's end. Empty lines are rows too."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.room import LINE_OF_TEXT
from ortdeploy.records import ordered_record
from ortdeploy.results.rows import Block
from ortdeploy.sources.files import shown
from ortdeploy.sources.opened import Lines, open_binary
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.rows import RawRow, RowError, block_rows
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".txt",)
FIRST_ROWS = 64
PACKAGE = None

COLUMN = "text"
"""The name of the one column that a text file has."""


def probe(_files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Name the column; the number of lines stays unknown, because counting means reading."""
    return replace(facts, columns={COLUMN: TensorType("string", (ROWS,))})


@ordered_record
class _TextSource:
    files: Sequence[str]
    folder: str
    wanted: Wanted

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        lines = islice(self._lines(), start - self.wanted.first_row, None)
        return block_rows(lines, _decode, self.wanted, start, sizes)

    def _lines(self) -> Iterator[RawRow]:
        for path in self.files:
            name = shown(path, self.folder)
            with open_binary(path, name) as file:
                lines = Lines(name, LINE_OF_TEXT, self.wanted.memory_limit)
                for number, line in enumerate(lines.read(file), 1):
                    yield RawRow(name, f":{number}", line, number - 1)


def _decode(raw: RawRow) -> dict[str, Any]:
    try:
        return {COLUMN: raw.value.removesuffix(b"\n").removesuffix(b"\r").decode()}
    except UnicodeDecodeError as error:
        raise RowError("the line is not UTF-8 text", "not-utf8") from error


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[_TextSource]:
    """Open text files as one run of lines."""
    yield _TextSource(files, folder, wanted)
