"""Connected places of a map of answers: runs of hot pixels that touch, also at a corner."""

from dataclasses import dataclass

import numpy as np

from ortdeploy.tensors.columns import Array


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of hot pixels, line by line: the line of each, its first pixel, the one behind its last, and its place.

    A place is named by the number of one of its runs.
    """

    rows: list[int]
    lefts: list[int]
    rights: list[int]
    places: list[int]


def find_runs(hot: Array) -> Runs:
    """Return the runs of bool [height, width] with the place that each is part of."""
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
    """Give runs of two rows that touch, also at a corner, the same root."""
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
