"""CSV with a header line.

A column whose rows are vectors becomes one column per element: scores.0, scores.1 and so on.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.csv_text import read_cells, written_rows
from ortdeploy.files.opening import copy_into, open_text
from ortdeploy.sinks.protocol import TEXT_BYTES, Order, RowShape, as_rows, encoded, in_pieces, no_types
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.json_values import as_text

SUFFIX = ".csv"
BLOCK_COPIES, PIECE, GATHERED, PART_COPIES = 20, TEXT_BYTES, 0, 0
KEEPS_ZEROS = True
KEEPS_NULLS, KEEPS_SURROGATES = True, False
COLUMN_TYPES = "none"
PACKAGE = None


class _Cells(NamedTuple):
    """A column as cells: the shape of its rows, and each row, which is a value or the values of all its elements."""

    shape: tuple[int, ...]
    rows: list[Any]


class _CsvSink:
    is_exact = True

    def __init__(self, file: BinaryIO, columns: Sequence[str]) -> None:
        self._file = file
        self._columns = columns
        self._header: list[str] | None = None
        self._shapes: Sequence[tuple[int, ...]] | None = None
        self._header_without_rows: list[str] | None = None

    def take_up(self, path: Path) -> None:
        with open_text(path, newline="") as part:
            lines = read_cells(part)
            header = next(lines)
            if next(lines, None) is None:
                self._header_without_rows = header
                return
            self._header = header
        copy_into(self._file, path)

    def write(self, columns: Mapping[str, Column]) -> None:
        for piece in in_pieces(columns):
            self._write([_cells(name, piece[name]) for name in self._columns])

    def _write(self, columns: Sequence[_Cells]) -> None:
        shapes = tuple(column.shape for column in columns)
        if not columns[0].rows:
            self._header_without_rows = _names(self._columns, shapes)
            return
        if shapes != self._shapes:
            self._take_header(_names(self._columns, shapes))
            self._shapes = shapes
        self._file.write(encoded(written_rows(_joined(columns))))

    def _take_header(self, names: list[str]) -> None:
        if self._header is None:
            self._file.write(encoded(written_rows([names])))
            self._header = names
        elif names != self._header:
            raise ValueError("rows of different shapes cannot share a CSV; use jsonl")

    def close(self) -> None:
        """Write the header of a part that got no rows; nothing else is buffered."""
        if self._header is None and self._header_without_rows is not None:
            self._file.write(encoded(written_rows([self._header_without_rows])))


def _cells(name: str, column: Column) -> _Cells:
    """Return the cells of each row of a column. Raises ValueError if a row has what no cells hold."""
    array = as_rows(name, column)
    if isinstance(column, list) and column and isinstance(column[0], np.ndarray):
        if array.ndim != 1:
            raise ValueError(f"rows of {name} differ in shape, which CSV cannot hold; use jsonl")
        column = array  # keys such as the number of a frame, one array without axes for each row
    if isinstance(column, list) and (
        array.ndim != 1 or any(isinstance(value, dict | list | tuple) for value in column)
    ):
        raise ValueError(f"the rows of {name} hold lists or maps, which CSV cannot; use jsonl")
    if array.ndim > 1:
        return _Cells(array.shape[1:], array.reshape(len(array), math.prod(array.shape[1:])).tolist())
    values = column if isinstance(column, list) else column.tolist()
    return _Cells((), [as_text(value) if isinstance(value, bytes) else value for value in values])


def _joined(columns: Sequence[_Cells]) -> Iterator[Sequence[Any]]:
    """Return the cells of each row of all columns."""
    if not any(column.shape for column in columns):
        return zip(*(column.rows for column in columns), strict=True)
    parts = (column.rows if column.shape else [[value] for value in column.rows] for column in columns)
    return (list(chain.from_iterable(row)) for row in zip(*parts, strict=True))


def _names(columns: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the header: a name for each element of a row of each column."""
    return [
        ".".join([name, *map(str, index)])
        for name, shape in zip(columns, shapes, strict=True)
        for index in np.ndindex(shape)
    ]


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], _origin: str, _types: Mapping[str, str]) -> _CsvSink:
    """Begin a part. CSV has no place for the origin of a part; the report has it."""
    return _CsvSink(file, tuple(columns))


column_types = no_types


def row_numbers(path: Path) -> list[int]:
    """Return the column `row` of a part."""
    header, *lines = _rows(path)
    at = header.index("row")
    return [int(line[at]) for line in lines]


def merge(parts: Sequence[Path], order: Order, file: BinaryIO) -> None:
    """Write chosen rows of several parts of one job as one part, in the given order."""
    rows: list[list[str]] = []
    for path in parts:
        header, *lines = _rows(path)
        if not lines and (rows or path != parts[-1]):
            continue
        if rows and header != rows[0]:
            raise ValueError("rows of different shapes cannot share a CSV; use jsonl")
        rows = [*(rows or [header]), *lines]
    file.write(written_rows([rows[0], *(rows[place + 1] for place in order)]).encode())


def _rows(path: Path) -> list[list[str]]:
    """Return the cells of a part, whose lines end in a line feed. Raises OrtdeployError for one of older versions."""
    try:
        with open_text(path, newline="\n") as part:
            return list(read_cells(part))
    except csv.Error as error:
        raise OrtdeployError(
            f"{path} cannot be read: {error}. ortdeploy 0.1.0 wrote texts with a carriage return without quotes. Write "
            "the output anew: ortdeploy apply --new-run."
        ) from error
