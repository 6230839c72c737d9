"""CSV with a header line. Cells are read as the element type of the model input that they feed."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TextIO

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.room import LINE_OF_VALUES
from ortdeploy.records import ordered_record
from ortdeploy.results.rows import Block
from ortdeploy.sources.files import shown
from ortdeploy.sources.opened import Lines, open_binary
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.rows import RawRow, RowError, block_rows
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".csv",)
FIRST_ROWS = 64
PACKAGE = None


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the header of each file; all must agree."""
    header: list[str] | None = None
    for path in files:
        names = _header(path, facts.memory_limit)
        if header is not None and names != header:
            detail = f"{path} has the columns {', '.join(names)}, and {files[0]} has {', '.join(header)}."
            return replace(facts, problem=Problem(kind="unreadable", detail=detail))
        header = names
    return replace(facts, columns={name: TensorType(None, (ROWS,)) for name in header or ()})


@contextmanager
def _open(path: str, name: str) -> Iterator[TextIO]:
    """Open a file as text, in which bytes that are not UTF-8 can be recognised."""
    with open_binary(path, name) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="", errors="surrogateescape")
        yield text
        text.detach()


class _Records:
    """The lines of a file, with a limit for the size of one record."""

    def __init__(self, file: TextIO, lines: Lines) -> None:
        self._file, self._lines = file, lines
        self._left = lines.most
        self._number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._left + 1)
        self._number += 1
        self._left -= len(line)
        if self._left < 0:
            raise self._lines.too_long(self._number)
        if not line:
            raise StopIteration
        return line

    def begin(self) -> None:
        """Begin a record, which may have several lines."""
        self._left = self._lines.most


def _header(path: str, limit: int | None) -> list[str]:
    try:
        with _open(path, path) as file:
            names = next(csv.reader(_Records(file, Lines(path, LINE_OF_VALUES, limit))), [])
    except csv.Error as error:
        raise OrtdeployError(f"{path} cannot be read: {error}") from error
    if not names:
        raise OrtdeployError(f"{path} is empty; its first line must name the columns")
    if not _is_utf8(names):
        raise OrtdeployError(f"{path} is not UTF-8 text")
    if len(set(names)) != len(names):
        raise OrtdeployError(f"{path} names a column twice in its first line")
    return names


def _is_utf8(cells: list[str]) -> bool:
    """Return whether cells that were decoded with surrogateescape held other bytes than UTF-8."""
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True


@ordered_record
class _CsvSource:
    files: Sequence[str]
    folder: str
    wanted: Wanted

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        raw_rows = islice(self._raw_rows(), start - self.wanted.first_row, None)
        return block_rows(raw_rows, self._decode, self.wanted, start, sizes)

    def _raw_rows(self) -> Iterator[RawRow]:
        for path in self.files:
            names = _header(path, self.wanted.memory_limit)
            name = shown(path, self.folder)
            with _open(path, name) as file:
                records = _Records(file, Lines(name, LINE_OF_VALUES, self.wanted.memory_limit))
                reader = csv.reader(records, strict=True)
                next(reader)
                rows = (cells for cells in _guarded(reader, records) if cells or len(names) > 1)
                for number, cells in enumerate(rows):
                    yield RawRow(name, f":{reader.line_num}", (names, cells), number)

    def _decode(self, raw: RawRow) -> dict[str, Any]:
        names, cells = raw.value
        if isinstance(cells, RowError):
            raise cells
        if len(cells) != len(names):
            raise RowError(f"the line has {len(cells)} cells and the header {len(names)}", "cell-count")
        if not _is_utf8(cells):
            raise RowError("the line is not UTF-8 text", "not-utf8")
        return dict(zip(names, cells, strict=True))


def _guarded(reader: Any, records: _Records) -> Iterator[list[str] | RowError]:
    """Yield the reader's lines; one that is not CSV is a failed row."""
    while True:
        records.begin()
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield RowError(f"the line is not CSV: {error}", "not-csv")


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[_CsvSource]:
    """Open CSV files as one table."""
    yield _CsvSource(files, folder, wanted)
