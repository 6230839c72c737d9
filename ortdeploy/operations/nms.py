"""`nms` — the boxes of each row that do not overlap a better one of their class: non-maximum suppression.

`boxes` are [rows, n, 4] (left, top, right, bottom), `scores` [rows, n] or [rows, n, classes]. Boxes below `score`
(default 0.25) are left out, then those that overlap a better one of their class by more than `iou` (default 0.45); at
most `max` (default 300) are kept, the best first. Gives boxes [n, 4], scores [n] and classes [n].
"""

import numpy as np

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    COORDINATES,
    INDEX,
    LOGITS,
    NORMALISED,
    PIXELS,
    PROBABILITY,
    REALS,
    Attribute,
    Contract,
    FormalParameter,
    forms,
)
from ortdeploy.transforms.protocol import Options

PACKAGE = None


_RAW = (
    "The raw output of a detector, such as [rows, 84, 8400], holds boxes and scores in one tensor: let the model give "
    "them as two outputs, boxes [rows, n, 4] as left, top, right, bottom and scores [rows, n, classes]"
)

CONTRACT = Contract(
    name="nms",
    meaning="The boxes that do not overlap a better one of their class: non-maximum suppression",
    inputs=(
        FormalParameter(
            "boxes",
            "B",
            forms("rows n 4"),
            "left, top, right, bottom",
            units=(PIXELS, NORMALISED),
            not_nan=True,
            advice=_RAW,
        ),
        FormalParameter(
            "scores",
            "T",
            forms("rows n", "rows n classes"),
            "the score of each box, or of each box and class",
            units=(PROBABILITY, LOGITS),
            not_nan=True,
        ),
    ),
    outputs=(
        FormalParameter("boxes", "float32", forms("rows kept 4"), "the boxes, the best first", keeps=("unit",)),
        FormalParameter("scores", "float32", forms("rows kept"), "their scores", keeps=("unit",), like="scores"),
        FormalParameter("classes", "int64", forms("rows kept"), "their classes", units=(INDEX,)),
    ),
    attributes=(
        Attribute("iou", "FLOAT", "the largest overlap of two boxes of a class", default=0.45, least=0, most=1),
        Attribute("score", "FLOAT", "boxes below are left out", default=0.25),
        Attribute("max", "INT", "at most so many boxes are kept", default=300, least=1),
    ),
    types=(REALS, COORDINATES),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    least, most = float(options["score"]), int(options["max"])
    overlap = float(options["iou"])

    def suppress(boxes: Array, scores: Array) -> tuple[Array, Array, Array]:
        boxes = np.asarray(boxes, dtype=np.float32)
        table = np.asarray(scores[:, np.newaxis] if scores.ndim == 1 else scores, dtype=np.float32)
        places, classes = np.nonzero(table >= least)
        order = np.argsort(-table[places, classes], kind="stable")
        places, classes = places[order], classes[order]
        kept = _keep(boxes[places], classes, overlap, most)
        places, classes = places[kept], classes[kept]
        return boxes[places], table[places, classes], classes.astype(np.int64)

    return by_row(suppress, 3, "boxes", "scores")


def _keep(boxes: Array, classes: Array, overlap: float, most: int) -> list[int]:
    """Return the places of boxes, the best first, that no better one of their class overlaps too much."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    areas = sides[:, 0] * sides[:, 1]
    left = np.arange(len(boxes))
    kept: list[int] = []
    while len(left) and len(kept) < most:
        best, rest = left[0], left[1:]
        kept.append(int(best))
        low, high = np.maximum(boxes[best, :2], boxes[rest, :2]), np.minimum(boxes[best, 2:], boxes[rest, 2:])
        common = np.maximum(high - low, 0).prod(axis=1)
        union = areas[best] + areas[rest] - common
        left = rest[(classes[rest] != classes[best]) | (common <= overlap * union)]
    return kept
