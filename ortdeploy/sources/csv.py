"""CSV with a header line. Cells are read as the element type of the model input that they feed."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.csv_text import read_cells
from ortdeploy.files.room import LINE_OF_VALUES
from ortdeploy.sources.files import shown
from ortdeploy.sources.opened import Lines, open_binary
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.row_index import START, Mark
from ortdeploy.sources.rows import RawRow, RowError
from ortdeploy.sources.text_rows import TextRows
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".csv",)
FIRST_ROWS = 64
PACKAGE = None


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the header of each file; all must have the same columns, in any order, as cells are taken by name."""
    header: list[str] | None = None
    for path in files:
        names = _header(path, facts.memory_limit)
        if header is not None and set(names) != set(header):
            detail = f"{path} has the columns {', '.join(names)}, and {files[0]} has {', '.join(header)}."
            return replace(facts, problem=Problem(kind="unreadable", detail=detail))
        header = header or names
    return replace(facts, columns={name: TensorType(None, (ROWS,)) for name in header or ()})


_CHUNK = 64 * 1024
_BOM = b"\xef\xbb\xbf"


def _pieces(file: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield the lines of a file, which end in a line feed, a carriage return or both; one that is too long is cut."""
    open_line: list[bytes] = []
    while chunk := file.read(_CHUNK):
        open_line.append(chunk)
        if not any(end in chunk for end in (b"\n", b"\r")) and not open_line[0].endswith(b"\r"):
            if sum(map(len, open_line)) > most:
                break
            continue
        *whole, last = b"".join(open_line).splitlines(keepends=True)
        open_line = [] if last.endswith(b"\n") else [last]  # a line that ends in \r may continue with \n
        yield from whole
        if not open_line:
            yield last
    if open_line:
        yield b"".join(open_line)


class _Records:
    """The lines of a file from a mark on, with a limit for the size of one record.

    `line` and `offset` are how many lines and bytes are in front of the next one. Bytes that are not UTF-8 become
    surrogates, by which they are recognised.
    """

    def __init__(self, file: BinaryIO, lines: Lines, mark: Mark = START) -> None:
        file.seek(mark.offset)
        self._pieces, self._lines = _pieces(file, lines.most), lines
        self._left = lines.most
        self.line, self.offset = mark.line, mark.offset

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        piece = next(self._pieces)
        self.line += 1
        self._left -= len(piece)
        if self._left < 0:
            raise self._lines.too_long(self.line)
        is_first = not self.offset
        self.offset += len(piece)
        text = piece.decode(errors="surrogateescape")
        return text.removeprefix("\ufeff") if is_first else text

    def begin(self) -> tuple[int, int]:
        """Begin a record, which may have several lines; return how many lines and bytes are in front of it."""
        self._left = self._lines.most
        return self.line, self.offset


def _header(path: str, limit: int | None) -> list[str]:
    try:
        with open_binary(path, path) as file:
            names = next(read_cells(_Records(file, Lines(path, LINE_OF_VALUES, limit))), [])
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
    """Return whether cells that were decoded with surrogateescape are UTF-8."""
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True


def _decode(raw: RawRow) -> dict[str, Any]:
    names, cells = raw.value
    if isinstance(cells, RowError):
        raise cells
    if len(cells) != len(names):
        raise RowError(f"the line has {len(cells)} cells and the header {len(names)}", "cell-count")
    if not _is_utf8(cells):
        raise RowError("the line is not UTF-8 text", "not-utf8")
    return dict(zip(names, cells, strict=True))


def read_rows(path: str, mark: Mark, *, folder: str, limit: int | None) -> Iterator[RawRow]:
    """Yield the records of a file from a mark on."""
    names, name, number = _header(path, limit), shown(path, folder), mark.row
    with open_binary(path, name) as file:
        records = _Records(file, Lines(name, LINE_OF_VALUES, limit), mark)
        reader = read_cells(records, strict=True)
        if mark == START:
            next(reader)
        for begin, cells in _guarded(reader, records):
            if cells or len(names) > 1:
                yield RawRow(name, f":{records.line}", (names, cells), number, begin)
                number += 1


def _guarded(reader: Any, records: _Records) -> Iterator[tuple[tuple[int, int], list[str] | RowError]]:
    """Yield the reader's records, each with the lines and bytes in front of it; one that is not CSV is a failed row."""
    while True:
        begin = records.begin()
        try:
            yield begin, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield begin, RowError(f"the line is not CSV: {error}", "not-csv")


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TextRows]:
    """Open CSV files as one table."""
    yield TextRows(read_rows, _decode, files, folder, wanted)
