"""`nms` — the boxes of each row that do not overlap a better one of their class: non-maximum suppression.

`boxes` are [rows, n, 4] (left, top, right, bottom), `scores` [rows, n] or [rows, n, classes]. Boxes below `score`
(default 0.25) are left out, then those that overlap a better one of their class by more than `iou` (default 0.45); at
most `max` (default 300) are kept, the best first. Gives boxes [n, 4], scores [n] and classes [n].
"""

import numpy as np

from ortdeploy.operations.protocol import BOXES, Array, Call, Types, by_row, need_floating, need_rank
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms.protocol import Options

PACKAGE = None
TAKES: Types = {}

_RANKS = (2, 3)


def infer(options: Options, types: Types) -> tuple[TensorType, ...]:  # noqa: ARG001  the same results in any case
    need_rank(types, "boxes", 3, "boxes [rows, n, 4]")
    need_floating(types, "scores")
    shape = types["scores"].shape
    if shape is not None and len(shape) not in _RANKS:
        raise InapplicableError(f"scores must be [rows, n] or [rows, n, classes] and are {types['scores']}")
    return TensorType("float32", BOXES), TensorType("float32", (ROWS, None)), TensorType("int64", (ROWS, None))


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    least, most = float(options.get("score", 0.25)), int(options.get("max", 300))
    overlap = float(options.get("iou", 0.45))

    def suppress(boxes: Array, scores: Array) -> tuple[Array, Array, Array]:
        boxes = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
        table = np.asarray(scores, dtype=np.float32).reshape(len(boxes), -1)
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
