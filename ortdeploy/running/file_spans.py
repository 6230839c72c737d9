"""Collects from blocks which rows of a job each input file has."""

from collections.abc import Iterator

import numpy as np

from ortdeploy.files.packed import Packed, Packer
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, Block
from ortdeploy.tensors.columns import numbers


class _Spans(Packed):
    """Paths, each with the number of its first row and how many rows it has."""

    NUMBERS = 2


class FileSpans:
    """The rows of the files in the blocks so far; a file may occur several times, each time with more rows."""

    def __init__(self) -> None:
        """Begin with none."""
        self._told = Packer(_Spans)

    def add(self, block: Block) -> None:
        """Add the files of a block's rows."""
        for path, first_row, end in _files_of(block):
            self._told.add((path, first_row, end - first_row))

    def all(self) -> Iterator[tuple[str, int, int]]:
        """Yield each path with the number of its first row and how many rows it has."""
        yield from self._told.packed().cells()


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
