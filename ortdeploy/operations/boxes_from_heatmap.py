"""`boxes_from_heatmap` — boxes around the connected regions of a heatmap that reach a threshold.

The heatmap is [rows, height, width] or [rows, 1, height, width]. Pixels that touch, also at a corner, belong to one
region. Each row gives boxes [n, 4] float32: left, top, right, bottom in pixels of the heatmap times `stride`, grown by
`margin` pixels (a negative margin shrinks them). Regions of fewer than `min_area` pixels are left out.

Boxes come in reading order: lines from top to bottom, and each line from left to right. A box belongs to a line if its
top is above the middle of the line's first box.
"""

from collections.abc import Iterator

import numpy as np

from ortdeploy.operations.places import find_runs
from ortdeploy.operations.protocol import BOXES, Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import IMAGE_SIZES, REALS, Attribute, Contract, FormalParameter, forms
from ortdeploy.transforms.protocol import Options

Box = tuple[int, int, int, int]


CONTRACT = Contract(
    name="boxes_from_heatmap",
    meaning="Boxes around connected places whose heat reaches a threshold, in the order of reading",
    inputs=(FormalParameter("heat", "T", forms("rows height width", "rows 1 height width"), "heat", not_nan=True),),
    outputs=(BOXES,),
    attributes=(
        Attribute("threshold", "FLOAT", "the least heat", required=True),
        Attribute("stride", "FLOAT", "what boxes are multiplied with", default=1, above=0),
        Attribute("min_area", "INT", "places of fewer pixels are left out", default=1, least=1),
        Attribute("margin", "FLOAT", "how far boxes are grown", default=0),
    ),
    types=(REALS,),
    sizes=IMAGE_SIZES,
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every heatmap
    threshold, area = float(options["threshold"]), int(options["min_area"])
    stride, margin = float(options["stride"]), float(options["margin"])

    def boxes(heat: Array) -> tuple[Array]:
        places = [box for box, size in _places(heat.reshape(heat.shape[-2:]) >= threshold) if size >= area]
        found = np.array(_in_reading_order(places), dtype=np.float32).reshape(-1, 4) * stride
        return (found + np.array([-margin, -margin, margin, margin], dtype=np.float32),)

    return by_row(boxes, 1, "heat")


def _in_reading_order(boxes: list[Box]) -> list[Box]:
    lines: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: (box[1], box[0])):
        if lines and box[1] < (lines[-1][0][1] + lines[-1][0][3]) / 2:
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line)]


def _places(hot: Array) -> Iterator[tuple[Box, int]]:
    """Yield the box (right and bottom exclusive) and pixel count of each connected region of bool [height, width]."""
    runs = find_runs(hot)
    found: dict[int, tuple[Box, int]] = {}
    for row, left, right, place in zip(runs.rows, runs.lefts, runs.rights, runs.places, strict=True):
        (a, b, c, d), size = found.get(place, ((left, row, right, row + 1), 0))
        found[place] = (min(a, left), min(b, row), max(c, right), max(d, row + 1)), size + right - left
    yield from found.values()
