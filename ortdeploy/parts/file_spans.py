"""Collects from blocks which rows of a job each input file has."""

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from ortdeploy.files.compact_list import OF_A_BLOCK, CompactList
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, Block
from ortdeploy.sources.catalogue import FILE_IS_ROW
from ortdeploy.tensors.columns import numbers


class Spans(CompactList):
    """An unchangeable list of paths, each with the number of its first row in the job and how many rows it has.

    A path may occur several times, each time with more rows.
    """

    NUMBERS = 2

    def make(self, cells: tuple[Any, ...]) -> tuple[str, int, int]:
        """Return the path and the two numbers."""
        path, first_row, rows = cells
        return path, first_row, rows


def sources_of_rows(form: str | None, spans: Iterable[tuple[str, int, int]]) -> dict[int, str]:
    """Return the input file of each row, by number, after which its pictures are named: where each file is one row."""
    return {first: path for path, first, _ in spans} if form in FILE_IS_ROW else {}


class FileSpans:
    """The rows of the files in the blocks so far; a file may occur several times, each time with more rows.

    They are collected in columns: where each file is one row, an object for each takes longer than all else here.
    """

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._paths: list[str] = []
        self._firsts, self._counts = array("q"), array("q")
        self.last: tuple[int, str] | None = None
        """The file with the largest number of a first row: that number, and its path."""

    def add(self, block: Block) -> None:
        """Add the files of a block's rows."""
        for row in block.failed:
            if row.file_row is not None:
                self._add([row.path], array("q", [row.row - row.file_row]), array("q", [row.file_row + 1]))
        if len(block.rows) and FILE_ROW in block.columns:
            rows = numbers(block.rows)
            firsts = rows - np.asarray(block.columns[FILE_ROW], dtype=np.int64)
            ends = [*np.flatnonzero(np.diff(firsts)).tolist(), len(rows) - 1]
            paths, firsts = block.columns[FILE_PATH], firsts[ends]
            counts = rows[ends] + 1 - firsts
            self._add([str(paths[at]) for at in ends], array("q", firsts.tobytes()), array("q", counts.tobytes()))

    def _add(self, paths: list[str], firsts: "array[int]", counts: "array[int]") -> None:
        last = max(zip(firsts, paths, strict=True))
        self.last = last if self.last is None else max(self.last, last)
        self._paths += paths
        self._firsts += firsts
        self._counts += counts
        while len(self._paths) >= OF_A_BLOCK:
            self._blocks += self._packed(OF_A_BLOCK).blocks
            self._paths, self._firsts = self._paths[OF_A_BLOCK:], self._firsts[OF_A_BLOCK:]
            self._counts = self._counts[OF_A_BLOCK:]

    def _packed(self, most: int) -> Spans:
        paths = self._paths[:most]
        return Spans.pack_columns([("\0".join(paths), self._firsts[:most], self._counts[:most])] if paths else [])

    def all(self) -> Spans:
        """Return each path with the number of its first row and how many rows it has."""
        rest = self._packed(OF_A_BLOCK)
        return Spans([*self._blocks, *rest.blocks], OF_A_BLOCK * len(self._blocks) + len(rest))
