"""Assigns two kinds of things to each other in pairs: the exact best of all ways, by the Hungarian method."""

import numpy as np

from ortdeploy.tensors.columns import Array


def assign(gain: Array) -> tuple[Array, Array]:
    """Return int64 [pairs] twice: rows and columns of `gain` [rows, columns], not negative, whose sum is the largest.

    Pairs that gain nothing are left out. It takes the time of n³, with n the smaller of the two numbers.
    """
    useful_rows, useful_columns = np.flatnonzero(gain.any(axis=1)), np.flatnonzero(gain.any(axis=0))
    cost = -gain[np.ix_(useful_rows, useful_columns)].astype(np.float64)
    if cost.shape[0] > cost.shape[1]:
        columns, rows = _cheapest(cost.T)
    else:
        rows, columns = _cheapest(cost)
    rows, columns = useful_rows[rows], useful_columns[columns]
    pays = gain[rows, columns] > 0
    order = np.argsort(rows[pays])
    return rows[pays][order], columns[pays][order]


def _cheapest(cost: Array) -> tuple[Array, Array]:
    """Return rows and columns of the cheapest assignment of all rows of `cost` [rows, columns], rows <= columns.

    One row after the other gets a column along the cheapest way over those that have one. Column 0 stands for none.
    """
    rows, columns = cost.shape
    of_row, of_column = np.zeros(rows + 1), np.zeros(columns + 1)  # the potentials
    taken_by = np.zeros(columns + 1, np.int64)  # from 1; 0: free
    for row in range(1, rows + 1):
        taken_by[0], column = row, 0
        least, before = np.full(columns + 1, np.inf), np.zeros(columns + 1, np.int64)
        visited = np.zeros(columns + 1, bool)
        while taken_by[column]:
            visited[column] = True
            here = taken_by[column]
            reduced = cost[here - 1] - of_row[here] - of_column[1:]
            nearer = ~visited[1:] & (reduced < least[1:])
            least[1:][nearer], before[1:][nearer] = reduced[nearer], column
            following = int(np.argmin(np.where(visited[1:], np.inf, least[1:]))) + 1
            step = least[following]
            of_row[taken_by[visited]] += step
            of_column[visited] -= step
            least[~visited] -= step
            column = following
        while column:
            taken_by[column] = taken_by[before[column]]
            column = before[column]
    found = np.flatnonzero(taken_by[1:])
    return taken_by[1:][found] - 1, found
