"""JSON lines: one object for each row, with lists for sequences and objects for maps.

`tensors.json_values` writes the values.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from ortdeploy.files.opening import copy_into, open_text, read_whole
from ortdeploy.sinks.protocol import TEXT_BYTES, Order, RowShape, encoded, in_pieces, no_types
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.json_values import json_column

SUFFIX = ".jsonl"
BLOCK_COPIES, PIECE, GATHERED, PART_COPIES = 20, TEXT_BYTES, 0, 0
KEEPS_ZEROS = True
KEEPS_NULLS, KEEPS_SURROGATES = True, True
COLUMN_TYPES = "none"
PACKAGE = None

_encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder a row


class _JsonlSink:
    is_exact = True

    def __init__(self, file: BinaryIO, columns: Sequence[str]) -> None:
        self._file = file
        self._columns = columns

    def take_up(self, path: Path) -> None:
        copy_into(self._file, path)

    def write(self, columns: Mapping[str, Column]) -> None:
        for piece in in_pieces(columns):
            self._write(piece)

    def _write(self, columns: Mapping[str, Column]) -> None:
        values = [json_column(columns[name]) for name in self._columns]
        lines = (_encode(dict(zip(self._columns, row, strict=True))) for row in zip(*values, strict=True))
        self._file.write(encoded("".join(f"{line}\n" for line in lines)))

    def close(self) -> None:
        """Do nothing; every row is written at once."""


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], _origin: str, _types: Mapping[str, str]) -> _JsonlSink:
    """Begin a part. JSON lines have no place for the origin of a part; the report has it."""
    return _JsonlSink(file, tuple(columns))


column_types = no_types


def row_numbers(path: Path) -> list[int]:
    """Return the column `row` of a part."""
    with open_text(path) as lines:
        return [json.loads(line)["row"] for line in lines]


def merge(parts: Sequence[Path], order: Order, file: BinaryIO) -> None:
    """Write chosen rows of several parts of one job as one part, in the given order."""
    lines = [line for path in parts for line in read_whole(path).splitlines(keepends=True)]
    file.writelines(lines[place] for place in order)
