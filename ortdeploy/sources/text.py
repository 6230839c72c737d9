"""Text: one row a line, column `text`, UTF-8 without the line's end and a byte order mark. Empty lines are rows too."""

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.memory_budget import LINE_OF_TEXT
from ortdeploy.sources.compression import Lines, open_binary
from ortdeploy.sources.files import shown
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.row_index import Mark
from ortdeploy.sources.rows import NUL_BYTES, RowError
from ortdeploy.sources.text_rows import TextRows
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".txt",)
FIRST_ROWS = 64
PACKAGE = None
SETTINGS = ()

COLUMN = "text"
"""The name of the one column that a text file has."""


def probe(_files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Return the facts with the column's name; the number of lines is unknown without reading."""
    return replace(facts, columns={COLUMN: TensorType("string", (ROWS,))})


def read_rows(path: str, mark: Mark, *, folder: str, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the lines of a file from a mark on."""
    name, offset = shown(path, folder), mark.offset
    with open_binary(path, name) as file:
        file.seek(offset)
        lines = Lines(name, LINE_OF_TEXT, wanted.memory_limit).read(file, mark.line)
        for number, line in enumerate(lines, mark.row):
            yield RawRow(name, f":{number + 1}", line, number, (number, offset))
            offset += len(line)


def _decode(raw: RawRow) -> dict[str, Any]:
    if b"\0" in raw.value:
        raise RowError(NUL_BYTES, "not-utf8")
    line = raw.value.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return {COLUMN: (line if raw.number else line.removeprefix(BOM_UTF8)).decode()}
    except UnicodeDecodeError as error:
        raise RowError("the line is not UTF-8 text", "not-utf8") from error


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TextRows]:
    """Open text files as one run of lines."""
    yield TextRows(partial(read_rows, folder=folder, wanted=wanted), _decode, files, wanted)
