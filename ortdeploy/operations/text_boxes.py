"""`text_boxes` — rotated boxes around lines of text, from the map of a DB detector such as PaddleOCR's and RapidOCR's.

The map is [rows, height, width] or [rows, 1, height, width], from 0 to 1. Pixels above `threshold` are dilated by a
square of `dilate` pixels, and each connected region gets the rectangle of the smallest area around it. Rectangles in
which the mean of the map is below `score` are left out. The others are grown on all sides by area * `unclip` /
circumference, because detectors are trained on shrunken ones.

Each row gives boxes [n, 4, 2] float32: the x and y of left top, right top, right bottom and left bottom, in whole
pixels of the map; if there is an `image`, in its pixels, and the map covers the whole image. Boxes come in reading
order; boxes whose tops are less than ten pixels apart belong to one line.

Sources: Liao et al., Real-time Scene Text Detection with Differentiable Binarization, AAAI 2020; DBPostProcess of
RapidAI/RapidOCR, whose order, rounding and limits are followed. Unlike that one, it finds no boxes around holes.
"""

from collections.abc import Iterator

import numpy as np

from ortdeploy.operations.places import find_runs
from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    IMAGE,
    IMAGE_SIZES,
    NUMBERS,
    OPTIONAL,
    PIXELS,
    PROBABILITY,
    REALS,
    Attribute,
    Contract,
    FormalParameter,
    SizeConstraint,
    TypeConstraint,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options

_LEAST_SIDE = 3
"""Pixels of the shortest side before growing; after it, two more; in the image, more than this."""
_LINE = 10
"""Pixels between the tops of two lines."""

CONTRACT = Contract(
    name="text_boxes",
    meaning="Rotated boxes around lines of text, from the map of a DB detector, in the order of reading",
    inputs=(
        FormalParameter(
            "heat",
            "T",
            forms("rows map_height map_width", "rows 1 map_height map_width"),
            "how much each pixel is text",
            units=(PROBABILITY,),
            not_nan=True,
        ),
        FormalParameter("image", "I", IMAGE, "the images that the maps cover", option=OPTIONAL),
    ),
    outputs=(
        FormalParameter(
            "boxes", "float32", forms("rows n 4 2"), "the corners, clockwise from left top", units=(PIXELS,)
        ),
        FormalParameter("scores", "float32", forms("rows n"), "the mean inside of each", units=(PROBABILITY,)),
    ),
    attributes=(
        Attribute("threshold", "FLOAT", "what is text", default=0.3, least=0, most=1),
        Attribute("score", "FLOAT", "boxes whose mean is below are left out", default=0.5, least=0, most=1),
        Attribute("unclip", "FLOAT", "how far boxes are grown", default=1.6, least=0, most=100),
        Attribute("dilate", "INT", "the square that places are dilated by; 1: none", default=2, least=1, most=16),
        Attribute("max", "INT", "the most places that are looked at", default=1000, least=1),
    ),
    types=(REALS, TypeConstraint("I", NUMBERS.types, NUMBERS.called)),
    sizes=(SizeConstraint("map_height", least=1), SizeConstraint("map_width", least=1), *IMAGE_SIZES),
)


def build(options: Options, types: Types) -> Call:
    threshold, side = float(options["threshold"]), int(options["dilate"])
    least, unclip, most = float(options["score"]), float(options["unclip"]), int(options["max"])
    axes = (1, 2) if "image" in types and types["image"].layout == "NCHW" else (0, 1)

    def detect(heat: Array, image: Array | None = None) -> tuple[Array, Array]:
        heat = convert(heat.reshape(heat.shape[-2:]), "float32")
        height, width = heat.shape if image is None else (image.shape[axis] for axis in axes)
        scale = np.array([width / heat.shape[1], height / heat.shape[0]])
        found, scores = [], []
        for points in list(_outlines(_dilated(heat > threshold, side)))[:most]:
            tight, sides = _smallest_rectangle(points, 0)
            mean = _mean_inside(heat, tight) if min(sides) >= _LEAST_SIDE else 0
            if min(sides) < _LEAST_SIDE or mean < least:
                continue
            distance = sides[0] * sides[1] * unclip / (2 * (sides[0] + sides[1]))
            grown, sides = _smallest_rectangle(np.trunc(tight), distance)  # pyclipper works in whole numbers
            corners = _clockwise(np.round(grown * scale).clip(0, [width, height])).clip(0, [width - 1, height - 1])
            if min(sides) >= _LEAST_SIDE + 2 and min(_sides(corners)) > _LEAST_SIDE:
                found.append(corners)
                scores.append(mean)
        boxes = np.array(found, np.float32).reshape(-1, 4, 2)
        order = _order_of_reading(boxes)
        return boxes[order], np.array(scores, np.float32)[order]

    return by_row(detect, 2, "heat", *(["image"] if "image" in types else []))


def _dilated(hot: Array, side: int) -> Array:
    """Return bool [height, width]: whether a square of `side` pixels around each pixel has a hot one."""
    made = hot.copy()
    before = side // 2
    for down in range(-before, side - before):
        for across in range(-before, side - before):
            to_rows, from_rows = _shifted(-down)
            to_columns, from_columns = _shifted(-across)
            made[to_rows, to_columns] |= hot[from_rows, from_columns]
    return made


def _shifted(by: int) -> tuple[slice, slice]:
    """Return two slices of one axis, the target and the source of values that move `by` places."""
    return slice(max(by, 0), min(by, 0) or None), slice(max(-by, 0), min(-by, 0) or None)


def _outlines(hot: Array) -> Iterator[Array]:
    """Yield float64 [points, 2] for each region: x and y of the ends of its runs. The last region comes first."""
    runs = find_runs(hot)
    points: dict[int, list[tuple[int, int]]] = {}
    for row, left, right, place in zip(runs.rows, runs.lefts, runs.rights, runs.places, strict=True):
        points.setdefault(place, []).extend([(left, row), (right - 1, row)])
    yield from (np.array(one, np.float64) for one in reversed(points.values()))


def _smallest_rectangle(points: Array, grow: float) -> tuple[Array, tuple[float, float]]:
    """Return the corners [4, 2] of the rectangle of the smallest area around points [points, 2], and its two sides.

    Each side is moved outwards by `grow`. One side of the smallest rectangle lies on an edge of the convex hull.
    """
    hull = _hull(points)
    edges = np.roll(hull, -1, axis=0) - hull
    lengths = np.linalg.norm(edges, axis=1)
    along = edges[lengths > 0] / lengths[lengths > 0, np.newaxis] if lengths.any() else np.array([[1.0, 0.0]])
    across = along[:, ::-1] * [-1, 1]
    spans = [hull @ axis.T for axis in (along, across)]
    low, high = (np.array([reach(span, axis=0) for span in spans]) for reach in (np.min, np.max))
    low, high = low - grow, high + grow
    best = int(np.prod(high - low, axis=0).argmin())
    (left, top), (right, bottom) = low[:, best], high[:, best]
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]]) @ [along[best], across[best]]
    return corners, (right - left, bottom - top)


def _hull(points: Array) -> Array:
    """Return the convex hull [hull points, 2] of points [points, 2], counter-clockwise, by Andrew's monotone chain."""
    ordered = sorted(set(map(tuple, points.tolist())))
    if len(ordered) == 1:
        return np.array(ordered)
    halves = [_half_hull(ordered), _half_hull(ordered[::-1])]
    return np.array([point for half in halves for point in half[:-1]])


def _half_hull(points: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    half: list[tuple[float, ...]] = []
    for x, y in points:
        while len(half) > 1:
            (ax, ay), (bx, by) = half[-2:]
            if (bx - ax) * (y - ay) > (by - ay) * (x - ax):
                break
            half.pop()
        half.append((x, y))
    return half


def _mean_inside(heat: Array, corners: Array) -> float:
    """Return the mean of a map [height, width] inside of corners [4, 2] and on their outline.

    The corners are cut to whole pixels first.
    """
    size = np.array(heat.shape[::-1])
    low = np.floor(corners.min(axis=0)).clip(0, size - 1).astype(int)
    high = np.ceil(corners.max(axis=0)).clip(0, size - 1).astype(int)
    quad = np.trunc(corners - low)
    y, x = np.mgrid[: high[1] - low[1] + 1, : high[0] - low[0] + 1]
    inside = np.ones(x.shape, bool)
    turn = _area(quad)
    for one, other in zip(quad, np.roll(quad, -1, axis=0), strict=True):
        dx, dy = other - one
        side = (dx * (y - one[1]) - dy * (x - one[0])) * (1 if turn >= 0 else -1)
        inside &= side >= -max(abs(dx), abs(dy)) / 2  # half a pixel beside an edge belongs to its line
    values = heat[low[1] : high[1] + 1, low[0] : high[0] + 1][inside]
    return float(values.mean()) if values.size else 0.0


def _area(quad: Array) -> float:
    """Return twice the signed area of corners [4, 2]: positive if they turn from the x axis towards the y axis."""
    following = np.roll(quad, -1, axis=0)
    return float((quad[:, 0] * following[:, 1] - following[:, 0] * quad[:, 1]).sum())


def _clockwise(corners: Array) -> Array:
    """Sort corners [4, 2] clockwise from left top: two are the left ones by x, and y tells top from bottom."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = (pair[np.argsort(pair[:, 1], kind="stable")] for pair in (by_x[:2], by_x[2:]))
    return np.array([left[0], right[0], right[1], left[1]])


def _sides(corners: Array) -> tuple[int, int]:
    """Return the lengths of the top and the left side of corners [4, 2], in whole pixels."""
    return int(np.linalg.norm(corners[0] - corners[1])), int(np.linalg.norm(corners[0] - corners[3]))


def _order_of_reading(boxes: Array) -> Array:
    """Return the indices of boxes [n, 4, 2] in reading order: line by line, and from left to right in each."""
    down = np.argsort(boxes[:, 0, 1], kind="stable")
    lines = np.cumsum(np.diff(boxes[down, 0, 1], prepend=0) >= _LINE)
    return np.asarray(down[np.lexsort((boxes[down, 0, 0], lines))])
