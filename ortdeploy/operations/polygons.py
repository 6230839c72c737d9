"""`polygons` — the outline of each mask: the corners of its largest piece, int64 [points, 2], clockwise.

A mask is every pixel that is not 0. The corners are those of pixels, so that the polygon has the area of the piece with
its holes filled. With `tolerance`, points that are no farther beside the line than that many pixels are left out.
A mask without a pixel has no points.
"""

import numpy as np

from ortdeploy.operations.places import find_runs
from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import NUMBERS, Attribute, Contract, FormalParameter, forms
from ortdeploy.transforms.protocol import Options

CONTRACT = Contract(
    name="polygons",
    meaning="The outline of the largest piece of each mask",
    inputs=(FormalParameter("masks", "T", forms("rows n height width"), "0 for what is outside"),),
    outputs=(FormalParameter("polygons", "int64", forms("rows n points 2"), "x and y of the corners"),),
    attributes=(
        Attribute("tolerance", "FLOAT", "how far points may be beside the line", default=0, least=0, most=1000),
    ),
    types=(NUMBERS,),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every type
    tolerance = float(options["tolerance"])

    def outline(masks: Array) -> tuple[list[Array]]:
        return ([_simpler(_outline(_largest(mask != 0)), tolerance) for mask in masks],)

    return by_row(outline, 1, "masks")


def _largest(mask: Array) -> Array:
    """Return the largest piece of a mask, bool [height, width]; pixels that touch at a corner are of one piece."""
    runs = find_runs(mask)
    sizes = np.zeros(len(runs.rows) + 1, np.int64)
    np.add.at(sizes, runs.places, np.subtract(runs.rights, runs.lefts))
    largest, piece = int(sizes.argmax()), np.zeros_like(mask)
    for row, left, right, place in zip(runs.rows, runs.lefts, runs.rights, runs.places, strict=True):
        if place == largest:
            piece[row, left:right] = True
    return piece


_RIGHT, _DOWN, _LEFT, _UP = (1, 0), (0, 1), (-1, 0), (0, -1)
_TURNS = {
    _RIGHT: (_UP, _RIGHT, _DOWN),
    _DOWN: (_RIGHT, _DOWN, _LEFT),
    _LEFT: (_DOWN, _LEFT, _UP),
    _UP: (_LEFT, _UP, _RIGHT),
}
"""Where an outline may go on from each direction, with the piece on its right: to the left, straight, to the right."""


def _outline(piece: Array) -> Array:
    """Return the corners [points, 2] of one piece, bool [height, width], clockwise from its first pixel."""
    places = np.argwhere(piece)
    if not len(places):
        return np.zeros((0, 2), np.int64)
    padded = np.pad(piece, 1)

    def is_in(x: int, y: int) -> bool:
        return bool(padded[y + 1, x + 1])

    def goes(x: int, y: int, way: tuple[int, int]) -> bool:
        """Return whether an edge leads on from a corner: the piece is on its right, and nothing on its left."""
        right, left = {
            _RIGHT: ((x, y), (x, y - 1)),
            _DOWN: ((x - 1, y), (x, y)),
            _LEFT: ((x - 1, y - 1), (x - 1, y)),
            _UP: ((x, y - 1), (x - 1, y - 1)),
        }[way]
        return is_in(*right) and not is_in(*left)

    first = (int(places[0][1]), int(places[0][0]))
    points, (x, y), way = [first], first, _RIGHT
    while True:
        x, y = x + way[0], y + way[1]
        following = next(one for one in _TURNS[way] if goes(x, y, one))
        if (x, y) == first and following == _RIGHT:
            return np.array(points, np.int64)
        if following != way:
            points.append((x, y))
        way = following


def _simpler(points: Array, tolerance: float) -> Array:
    """Return the points [points, 2] of a ring without those near the line between others, by Douglas and Peucker."""
    if not tolerance or len(points) < 4:  # noqa: PLR2004  a triangle
        return points
    far = int(np.square(points - points[0]).sum(axis=1).argmax())
    kept = {0, far}
    ring = np.concatenate([points, points[:1]])
    waiting = [(0, far), (far, len(points))]
    while waiting:
        begin, end = waiting.pop()
        inner = ring[begin + 1 : end] - ring[begin]
        along = ring[end] - ring[begin]
        length = np.hypot(*along)
        beside = np.abs(inner[:, 0] * along[1] - inner[:, 1] * along[0]) / length if length else np.hypot(*inner.T)
        if len(beside) and beside.max() > tolerance:
            split = begin + 1 + int(beside.argmax())
            kept.add(split)
            waiting += [(begin, split), (split, end)]
    return points[sorted(kept)]
