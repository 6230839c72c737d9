"""JSON lines: one object per row, sequences as lists and maps as objects.

Numbers keep every bit; NaN and infinities, which JSON does not have, become null.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ortdeploy.sinks.protocol import Order, RowShape, encoded
from ortdeploy.tensors.columns import Column

SUFFIX = ".jsonl"
BLOCK_COPIES, PART_COPIES = 20, 0
PACKAGE = None

_encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder a row


class _JsonlSink:
    is_exact = True

    def __init__(self, file: BinaryIO, columns: Sequence[str]) -> None:
        self._file = file
        self._columns = columns

    def take_up(self, path: Path) -> None:
        with path.open("rb") as part:
            shutil.copyfileobj(part, self._file)

    def write(self, columns: Mapping[str, Column]) -> None:
        values = [plain(columns[name]) for name in self._columns]
        lines = (_encode(dict(zip(self._columns, row, strict=True))) for row in zip(*values, strict=True))
        self._file.write(encoded("".join(f"{line}\n" for line in lines)))

    def close(self) -> None:
        """Nothing is held back."""


def plain(column: Column) -> list[Any]:
    """Return a column as Python values that JSON has."""
    if isinstance(column, list):
        return [_plain_value(value) for value in column]
    values: list[Any] = column.tolist()
    if np.issubdtype(column.dtype, np.floating) and not np.isfinite(column).all():
        return [_without_nan(value) for value in values]
    return values


def _plain_value(value: Any) -> Any:
    """Return a value of a list, a sequence, a map or an array of its own."""
    if isinstance(value, np.ndarray):
        return plain(value) if value.ndim else plain(value[np.newaxis])[0]
    if isinstance(value, dict):
        return {key: _plain_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    return _without_nan(value.item() if isinstance(value, np.generic) else value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], _origin: str) -> _JsonlSink:
    """Begin a part; the format has no place for its origin, which stands in the report."""
    return _JsonlSink(file, tuple(columns))


def row_numbers(path: Path) -> list[int]:
    """Return the column `row` of a part."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["row"] for line in lines]


def merge(old: Path | None, new: Path, order: Order, file: BinaryIO) -> None:
    """Write the rows of two parts of one job as one, in another order."""
    lines = [line for path in (old, new) if path for line in path.read_bytes().splitlines(keepends=True)]
    file.writelines(lines[place] for place in order)
