"""CSV with a header line. Cells are read as the element type of the model input that they feed.

A record has one line, or several if a line ends within quotes. If a record is broken, only its first line fails as a
row, and the next line begins a record of its own: a quote that is never closed costs one row, not the rest of the file.
"""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import Dialect, InputFacts
from ortdeploy.files.csv_text import read_cells
from ortdeploy.files.memory_budget import LINE_OF_VALUES
from ortdeploy.sources.compression import Lines, open_binary
from ortdeploy.sources.empty_cells import is_empty
from ortdeploy.sources.files import shown
from ortdeploy.sources.joined import JoinedFiles
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.row_index import START, Mark
from ortdeploy.sources.rows import NUL_BYTES, RowError
from ortdeploy.sources.settings import WINDOW
from ortdeploy.sources.text_rows import TextRows
from ortdeploy.tensors.carried import TEXT
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".csv",)
FIRST_ROWS = 64
PACKAGE = None
SETTINGS = (WINDOW,)


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the header of each file; columns may stand in any order, as cells are taken by name."""
    joined = JoinedFiles(lambda one, _: one, str)
    for path in files:
        joined.add(path, [(name, TEXT) for name in _header(path, facts.memory_limit, facts.dialect)])
    columns = {name: TensorType(None, (ROWS,)) for name in joined.columns}
    return joined.completed(facts, columns, joined.columns)


_CHUNK = 64 * 1024
_BOM = "\ufeff"


def _pieces(file: BinaryIO, most: int) -> Iterator[list[bytes]]:
    """Yield the lines of a file, which end in a line feed, a carriage return or both; one that is too long is cut.

    Those that are read at once come together.
    """
    open_line: list[bytes] = []
    while chunk := file.read(_CHUNK):
        open_line.append(chunk)
        if not any(end in chunk for end in (b"\n", b"\r")) and not open_line[0].endswith(b"\r"):
            if sum(map(len, open_line)) > most:
                break
            continue
        *whole, last = b"".join(open_line).splitlines(keepends=True)
        open_line = [] if last.endswith(b"\n") else [last]  # a line that ends in \r may continue with \n
        yield whole if open_line else [*whole, last]
    if open_line:
        yield [b"".join(open_line)]


_Record = tuple[list[str] | RowError, int, int]
"""A record's cells, or why it is none; and how many lines and bytes are in front of it."""


LINES = 100
"""The most lines of a record, if the manifest does not say."""

_EVIDENCE = 4
"""Delimiters at the places of those of rows from which on lines within quotes are taken for rows.

In a table of two columns, a text of two lines may well have one comma in each.
"""


class _UnclosedError(Exception):
    """A record has more lines than it may have."""


class _Records:
    """The records of a file from a mark on; `width` is how many cells they have, once the header has been read.

    Bytes that are not UTF-8 become surrogates, by which they are recognised. Where records begin depends on nothing
    but the file and the dialect, so every reader numbers them alike: one that counts, and one that begins at a mark.
    """

    def __init__(self, file: BinaryIO, lines: Lines, dialect: Dialect, mark: Mark = START) -> None:
        file.seek(mark.offset)
        self.width: int | None = None
        self._pieces, self._lines, self._dialect = _pieces(file, lines.most), lines, dialect
        self._next: list[bytes] = []  # lines that are read, the next one last
        self._taken: list[bytes] = []  # lines of the record that is being read
        self._most = dialect.lines_per_record or LINES
        self._line, self._offset = mark.line, mark.offset

    def read(self) -> Iterator[_Record]:
        """Yield records; a blank line is none. Raises OrtdeployError for one that is too long to be held."""
        reader, taken = self._reader(), self._taken
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except (csv.Error, _UnclosedError) as error:
                broken = RowError(self._what_is_wrong(error), "not-csv")
                reader = self._reader()  # the one before may have ended with the file
            else:
                doubt = None if len(taken) == 1 or self.width is None else self._doubt(cells)
                if doubt is None:
                    if len(cells) > 1 or not self._is_blank(cells):
                        yield cells, self._line, self._offset
                    self._accept(len(taken))
                    continue
                broken = doubt
            yield broken, self._line, self._offset
            self._accept(1)

    def _doubt(self, cells: Sequence[str]) -> RowError | None:
        """Return why several lines are no record, though csv says so: two quotes that were never closed look like one.

        They are not if they have another number of cells than the header. Nor if each line has that number by itself,
        unless the manifest says how many lines a record may have, or that is likely to be by chance.
        """
        lines, width, delimiter = len(self._taken), self.width or 0, self._dialect.delimiter.encode()
        if len(cells) != width:
            return _wrong_count(f"the record of {lines} lines that begins here", cells, width)
        evidence = lines * (width - 1)  # delimiters that are where those of rows would be
        if self._dialect.lines_per_record is not None or evidence < _EVIDENCE:
            return None
        if any(line.count(delimiter) != width - 1 for line in self._taken):
            return None
        why = f"a quote that opens in this line makes one record of {lines}, of which each looks like a row. {_REST}"
        return RowError(f"{why}. If they are one record, write lines_per_record: {max(lines, LINES)}", "not-csv")

    def _is_blank(self, cells: list[str]) -> bool:
        """Return whether a line is blank: it is empty, or has only spaces in a table of several columns."""
        return not cells or (len(cells) == 1 and self.width != 1 and cells[0].isspace())

    def _reader(self) -> Iterator[list[str]]:
        return read_cells(self._texts(), strict=True, delimiter=self._dialect.delimiter)

    def _texts(self) -> Iterator[str]:
        """Yield lines for as long as they may belong to one record."""
        taken, coming, most, longest = self._taken, self._next, self._most, self._lines.most
        size = 0
        while True:
            if len(taken) == most:
                raise _UnclosedError
            while not coming:
                more = next(self._pieces, None)
                if more is None:
                    return
                coming.extend(reversed(more))
            piece = coming.pop()
            size = size + len(piece) if taken else len(piece)
            taken.append(piece)
            if size > longest:
                raise self._lines.too_long(self._line + len(taken))
            text = piece.decode(errors="surrogateescape")
            yield text if self._offset else text.removeprefix(_BOM)

    def _accept(self, lines: int) -> None:
        """Pass the first lines of those that were taken; the others are read again."""
        taken = self._taken
        while len(taken) > lines:
            self._next.append(taken.pop())
        self._line += lines
        while taken:  # nearly always one
            self._offset += len(taken.pop())

    def _what_is_wrong(self, error: Exception) -> str:
        """Say why the lines that were taken are no record. Only the first of them fails for it."""
        lines, most, quote = len(self._taken), self._most, "a quote that opens in this line"
        if isinstance(error, _UnclosedError):
            within = f"within {most} lines" if most > 1 else "in it"
            return f"{quote} is not closed {within}, the most that a record may have (lines_per_record). {_REST}"
        if str(error) == _CUT_OFF:
            where = f", {lines - 1} lines on. {_REST}" if lines > 1 else ""
            return f"{quote} is not closed by the end of the file{where}"
        return f"the line is not CSV: {error}" + ("" if lines == 1 else f", in line {self._line + lines}. {_REST}")


_REST = "The lines behind this one are read as rows of their own"
_CUT_OFF = "unexpected end of data"
"""What the csv module says of a record that the end of the file cuts off."""


def _wrong_count(what: str, cells: Sequence[str], width: int | None) -> RowError:
    return RowError(f"{what} has {len(cells)} cells and the header {width}", "cell-count")


def _header(path: str, limit: int | None, dialect: Dialect) -> list[str]:
    with open_binary(path, path) as file:
        first = next(_Records(file, Lines(path, LINE_OF_VALUES, limit), dialect).read(), None)
    if first is None:
        raise OrtdeployError(f"{path} is empty; its first line must name the columns")
    names, line, _ = first
    if isinstance(names, RowError):
        raise OrtdeployError(f"{path}:{line + 1} must name the columns, and {names}")
    if _is_garbled("".join(names)):
        raise OrtdeployError(f"{path} is not UTF-8 text; save it as UTF-8")
    return names


def _is_garbled(text: str) -> bool:
    """Return whether text that was decoded with surrogateescape is not UTF-8."""
    if text.isascii():  # known without a look, and most text is
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _decode(raw: RawRow, empty: frozenset[str]) -> dict[str, Any]:
    names, cells = raw.value
    if isinstance(cells, RowError):
        raise cells
    if len(cells) != len(names):
        raise _wrong_count("the line", cells, len(names))
    text = "".join(cells)
    if _is_garbled(text):
        raise RowError("the line is not UTF-8 text", "not-utf8")
    if "\0" in text:
        raise RowError(NUL_BYTES, "not-csv")
    if empty:
        cells = ["" if is_empty(cell, empty) else cell for cell in cells]
    return dict(zip(names, cells, strict=True))


def read_rows(path: str, mark: Mark, *, folder: str, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the records of a file from a mark on."""
    limit, dialect = wanted.memory_limit, wanted.dialect
    names, name = _header(path, limit, dialect), shown(path, folder)
    with open_binary(path, name) as file:
        records = _Records(file, Lines(name, LINE_OF_VALUES, limit), dialect, mark)
        found = records.read()
        if mark == START:
            next(found)
        records.width = len(names)
        for number, (cells, line, offset) in enumerate(found, mark.row):
            yield RawRow(name, f":{line + 1}", (names, cells), number, (line, offset))


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TextRows]:
    """Open CSV files as one table."""
    decode = partial(_decode, empty=frozenset(wanted.dialect.empty))
    yield TextRows(partial(read_rows, folder=folder, wanted=wanted), decode, files, wanted)
