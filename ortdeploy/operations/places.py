"""Connected regions of a map, found by runs: neighbouring hot pixels in one line of the map."""

import numpy as np
from msgspec import Struct

from ortdeploy.tensors.columns import Array


class Runs(Struct, frozen=True):
    """All runs of a map, from top to bottom: four lists with one element for each run.

    `rows` is the line, `lefts` the first pixel, `rights` the pixel after the last one, and `places` the run's region. A
    region is named by the index of one of its runs.
    """

    rows: list[int]
    lefts: list[int]
    rights: list[int]
    places: list[int]


def find_runs(hot: Array) -> Runs:
    """Return the runs of hot pixels in a map, bool [height, width]."""
    edges = np.diff(np.pad(hot, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, lefts = (edge.tolist() for edge in np.nonzero(edges == 1))
    rights = np.nonzero(edges == -1)[1].tolist()
    parents = list(range(len(rows)))
    above, begin = range(0), 0
    for row in range(hot.shape[0]):
        end = begin
        while end < len(rows) and rows[end] == row:
            end += 1
        _join_rows(above, range(begin, end), lefts, rights, parents)
        above, begin = range(begin, end), end
    return Runs(rows, lefts, rights, [_root(parents, run) for run in range(len(rows))])


def _join_rows(above: range, here: range, lefts: list[int], rights: list[int], parents: list[int]) -> None:
    """Give the same root to runs of two neighbouring lines that touch, also at a corner."""
    upper, lower = above.start, here.start
    while upper < above.stop and lower < here.stop:
        if lefts[upper] <= rights[lower] and lefts[lower] <= rights[upper]:
            parents[_root(parents, lower)] = _root(parents, upper)
        if rights[upper] < rights[lower]:
            upper += 1
        else:
            lower += 1


def _root(parents: list[int], run: int) -> int:
    while parents[run] != run:
        parents[run] = parents[parents[run]]
        run = parents[run]
    return run
