"""Collects from blocks which rows of a job each input file has."""

from typing import Any

import numpy as np

from ortdeploy.files.packed import Packed, Packer
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, Block
from ortdeploy.tensors.columns import numbers


class Spans(Packed):
    """An unchangeable list of paths, each with the number of its first row in the job and how many rows it has.

    A path may occur several times, each time with more rows.
    """

    NUMBERS = 2

    def make(self, cells: tuple[Any, ...]) -> tuple[str, int, int]:
        """Return the path and the two numbers."""
        path, first_row, rows = cells
        return path, first_row, rows


class FileSpans:
    """The rows of the files in the blocks so far."""

    def __init__(self) -> None:
        """Begin with none."""
        self._told = Packer(Spans)
        self._last: tuple[str, int, int] | None = None  # the next block may have more rows of this file

    def add(self, block: Block) -> None:
        """Add the files of a block's rows."""
        for path, first_row, end in _files_of(block):
            rows = end - first_row
            if self._last is not None and self._last[:2] == (path, first_row):
                rows = max(rows, self._last[2])
            elif self._last is not None:
                self._told.add(self._last)
            self._last = (path, first_row, rows)

    def all(self) -> Spans:
        """Return them; nothing may be added afterwards."""
        if self._last is not None:
            self._told.add(self._last)
            self._last = None
        found: Spans = self._told.packed()
        return found


def _files_of(block: Block) -> "list[tuple[str, int, int]]":
    """Return the path of each file, the number of its first row, and the row behind its last one here."""
    found = [(row.path, row.row - row.file_row, row.row + 1) for row in block.failed if row.file_row is not None]
    if not len(block.rows) or FILE_ROW not in block.columns:
        return found
    rows = numbers(block.rows)
    firsts = rows - np.asarray(block.columns[FILE_ROW], dtype=np.int64)
    paths = block.columns[FILE_PATH]
    ends = [*np.flatnonzero(np.diff(firsts)), len(rows) - 1]
    begins, last = firsts[ends].tolist(), (rows[ends] + 1).tolist()
    return [*found, *((str(paths[at]), begin, end) for at, begin, end in zip(ends, begins, last, strict=True))]
