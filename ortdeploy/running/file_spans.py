"""Which rows of a job each input file has, as its blocks tell."""

import numpy as np

from ortdeploy.ledger.records import Span
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, Block


def add_spans(spans: dict[str, Span], block: Block) -> None:
    """Add the files of a block's rows to those that are known by their path."""
    for path, first_row, end in _files_of(block):
        known_end = sum(spans.get(path, (first_row, 0)))
        spans[path] = (first_row, max(known_end, end) - first_row)


def _files_of(block: Block) -> "list[tuple[str, int, int]]":
    """Return the path of each file, the number of its first row, and the row behind its last one here."""
    found = [(row.path, row.row - row.file_row, row.row + 1) for row in block.failed if row.file_row is not None]
    if not len(block.rows) or FILE_ROW not in block.columns:
        return found
    rows = np.asarray(block.rows, dtype=np.int64)
    firsts = rows - np.asarray(block.columns[FILE_ROW], dtype=np.int64)
    paths = block.columns[FILE_PATH]
    ends = [*np.flatnonzero(np.diff(firsts)).tolist(), len(rows) - 1]
    return [*found, *((str(paths[at]), int(firsts[at]), int(rows[at]) + 1) for at in ends)]
