"""`nms` — non-maximum suppression: drops boxes that overlap a better box of the same class.

`boxes` are [rows, n, 4]: left, top, right, bottom. `scores` are [rows, n] or [rows, n, classes]. Boxes whose score is
below `score` are dropped first. Then a box is dropped if its overlap with a better one is more than `iou`; with
`among: all`, also if the better one is of another class.

With scores [rows, n, classes], a box is a candidate for each of its classes; with `labels: best`, only for its best
one. The class `background` is ignored. If `classes` is given, so are all classes that it does not list. At most `max`
boxes of a row are kept, and at most `max_per_class` of each class.

Each row gives boxes [kept, 4], best first, and their scores, classes and indices in n, each [kept].
"""

from collections import Counter

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
    ContractError,
    FormalParameter,
    Solved,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options

PACKAGE = None


_RAW = (
    "The raw output of a detector, such as [rows, 84, 8400], holds boxes and scores in one tensor: let the model give "
    "them as two outputs, boxes [rows, n, 4] as left, top, right, bottom and scores [rows, n, classes], or take it "
    "apart with yolo_decode"
)


def _hold_classes(solved: Solved, types: Types) -> None:
    """Check that the classes in the settings exist in the scores. Raises ContractError."""
    scores, count = types["scores"].shape, solved.size("classes")
    for key in ("background", "classes"):
        named = solved.options.get(key)
        if named is None:
            continue
        if scores is not None and len(scores) == 2:  # noqa: PLR2004  rows and boxes
            raise ContractError(f"{key} names classes, and scores {types['scores']} have none")
        for one in named if isinstance(named, list) else [named]:
            if count is not None and one >= count:
                raise ContractError(f"{key} names class {one}, and the last of {count} classes is {count - 1}")


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
        FormalParameter("places", "int64", forms("rows kept"), "their places in n, from 0"),
    ),
    attributes=(
        Attribute("iou", "FLOAT", "the largest overlap of two boxes", default=0.45, least=0, most=1),
        Attribute("score", "FLOAT", "boxes below are left out", default=0.25),
        Attribute("max", "INT", "the most boxes that are kept, of all classes together", default=300, least=1),
        Attribute("max_per_class", "INT", "the most boxes that are kept of each class", least=1),
        Attribute("background", "INT", "the class that is none", least=0),
        Attribute("classes", "INTS", "the only classes that count", least=0),
        Attribute("labels", "STRING", "the classes that a box counts for", default="all", choices=("all", "best")),
        Attribute("among", "STRING", "whose boxes a better one suppresses", default="class", choices=("class", "all")),
    ),
    types=(REALS, COORDINATES),
    arithmetic=_hold_classes,
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    least, overlap = float(options["score"]), float(options["iou"])
    best_alone, by_class = options["labels"] == "best", options["among"] == "class"

    def suppress(boxes: Array, scores: Array) -> tuple[Array, ...]:
        boxes = convert(boxes, "float32")
        table = convert(scores[:, np.newaxis] if scores.ndim == 1 else scores, "float32")
        places, classes = np.nonzero(_counts(table, options, best_alone=best_alone) & (table >= least))
        order = np.argsort(-table[places, classes], kind="stable")
        places, classes = places[order], classes[order]
        groups = classes if by_class else np.zeros_like(classes)
        kept = _keep(boxes[places], classes, groups, overlap, options["max"], options.get("max_per_class"))
        places, classes = places[kept], classes[kept]
        return boxes[places], table[places, classes], convert(classes, "int64"), convert(places, "int64")

    return by_row(suppress, 4, "boxes", "scores")


def _counts(table: Array, options: Options, *, best_alone: bool) -> Array:
    """Return bool [n, classes]: whether the box is a candidate for the class, from scores [n, classes]."""
    count = table.shape[1]
    named = np.ones(count, bool)
    if "classes" in options:
        named = np.isin(np.arange(count), options["classes"])
    if "background" in options:
        named &= np.arange(count) != options["background"]
    if not best_alone or not count:
        return np.broadcast_to(named, table.shape)
    return np.asarray(named & (table.argmax(axis=1)[:, np.newaxis] == np.arange(count)))


_AT_ONCE = 1024
"""Boxes that are compared at once: usually the first few of very many fill `max`."""


def _keep(
    boxes: Array, classes: Array, groups: Array, overlap: float, most: int, most_per_class: int | None
) -> list[int]:
    """Return the indices of the boxes [n, 4] to keep, best first; `groups` [n] says which boxes suppress each other."""
    kept: list[int] = []
    of_class: Counter[int] = Counter()
    for begin in range(0, len(boxes), _AT_ONCE):
        left = np.arange(begin, min(begin + _AT_ONCE, len(boxes)))
        left = left[~np.isin(classes[left], [one for one, count in of_class.items() if count == most_per_class])]
        left = left[~_too_close(boxes, groups, np.array(kept, int)[:, np.newaxis], left, overlap).any(axis=0)]
        while len(left) and len(kept) < most:
            best, rest = left[0], left[1:]
            kept.append(int(best))
            left = rest[~_too_close(boxes, groups, best, rest, overlap)]
            of_class[int(classes[best])] += 1
            if of_class[int(classes[best])] == most_per_class:
                left = left[classes[left] != classes[best]]
        if len(kept) == most:
            break
    return kept


def _too_close(boxes: Array, groups: Array, better: Array, others: Array, overlap: float) -> Array:
    """Return bool arrays: whether boxes of one group overlap by more than `overlap`.

    `better` and `others` are indices of boxes [n, 4]; they are broadcast against each other.
    """
    one, other = boxes[better], boxes[others]
    common = (np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])).clip(0).prod(axis=-1)
    areas = [(box[..., 2:] - box[..., :2]).clip(0).prod(axis=-1) for box in (one, other)]
    return np.asarray((groups[better] == groups[others]) & (common > overlap * (areas[0] + areas[1] - common)))
