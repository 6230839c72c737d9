"""`nms` — non-maximum suppression: drops boxes that overlap a better box of the same class.

`boxes` are [rows, n, 4]: left, top, right, bottom. `scores` are [rows, n] or [rows, n, classes]. Boxes whose score is
below `score` are dropped first. Then a box is dropped if its overlap with a better one is more than `iou`; with
`among: all`, also if the better one is of another class.

With scores [rows, n, classes], a box is a candidate for each of its classes; with `labels: best`, only for its best
one. The class `background` is ignored. If `classes` is given, so are all classes that it does not list. At most `max`
boxes of a row are kept, and at most `max_per_class` of each class.

Each row gives boxes [kept, 4], best first, and their scores, classes and indices in n, each [kept]. If `more` is given,
such as points of each box, a fifth result has those of the kept ones.

Turned boxes [rows, n, 5] are center x, center y, width, height and angle in radians, clockwise. Their overlap is that
of Gaussians, and a box is dropped if any better one overlaps it, also one that is itself dropped, as by ultralytics.

Sources: of turned boxes, Llerena et al., Gaussian Bounding Boxes and Probabilistic Intersection-over-Union, 2021, and
ultralytics' nms_rotated.
"""

from collections import Counter

import numpy as np
from msgspec.structs import replace

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    ANY,
    COORDINATES,
    INDEX,
    LOGITS,
    NORMALISED,
    OPTIONAL,
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

_RAW = (
    "The raw output of a detector, such as [rows, 84, 8400], holds boxes and scores in one tensor: let the model give "
    "them as two outputs, boxes [rows, n, 4] as left, top, right, bottom and scores [rows, n, classes], or take it "
    "apart with yolo_decode"
)


_CORNERS = 4
"""The numbers of a box that is not turned."""
_BOXES = forms("rows n 4", "rows n 5")
_KEPT = forms("rows kept 4", "rows kept 5")


def _hold_classes(solved: Solved, types: Types) -> None:
    """Check that the classes in the settings exist in the scores. Raises ContractError."""
    solved.chosen["boxes"] = tuple(_KEPT[_BOXES.index(one)] for one in solved.chosen.get("boxes", ()))
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
            _BOXES,
            "left, top, right, bottom; or center x, center y, width, height, angle",
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
        FormalParameter("more", "M", forms("rows n *dims"), "what else each box has", option=OPTIONAL),
    ),
    outputs=(
        FormalParameter("boxes", "float32", _KEPT, "the boxes, the best first", keeps=("unit",)),
        FormalParameter("scores", "float32", forms("rows kept"), "their scores", keeps=("unit",), like="scores"),
        FormalParameter("classes", "int64", forms("rows kept"), "their classes", units=(INDEX,)),
        FormalParameter("places", "int64", forms("rows kept"), "their places in n, from 0"),
        FormalParameter("more", "M", forms("rows kept *dims"), "theirs", option=OPTIONAL, named_by="more"),
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
    types=(REALS, COORDINATES, replace(ANY, name="M")),
    arithmetic=_hold_classes,
)


def build(options: Options, types: Types) -> Call:
    least, overlap = float(options["score"]), float(options["iou"])
    best_alone, by_class = options["labels"] == "best", options["among"] == "class"

    def suppress(boxes: Array, scores: Array, *more: Array) -> tuple[Array, ...]:
        boxes = convert(boxes, "float32")
        table = convert(scores[:, np.newaxis] if scores.ndim == 1 else scores, "float32")
        places, classes = np.nonzero(_counts(table, options, best_alone=best_alone) & (table >= least))
        order = np.argsort(-table[places, classes], kind="stable")
        places, classes = places[order], classes[order]
        groups = classes if by_class else np.zeros_like(classes)
        keep = _keep if boxes.shape[1] == _CORNERS else _keep_turned
        kept = keep(boxes[places], classes, groups, overlap, options["max"], options.get("max_per_class"))
        places, classes = places[kept], classes[kept]
        found = boxes[places], table[places, classes], convert(classes, "int64"), convert(places, "int64")
        return *found, *(one[places] for one in more)

    carried = ["more"] if "more" in types else []
    return by_row(suppress, 4 + len(carried), "boxes", "scores", *carried)


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


def _keep_turned(
    boxes: Array, classes: Array, groups: Array, overlap: float, most: int, most_per_class: int | None
) -> list[int]:
    """Return the indices of the turned boxes [n, 5] to keep, best first."""
    kept: list[int] = []
    of_class: Counter[int] = Counter()
    shapes = _gaussians(boxes)
    for place in range(len(boxes)):
        better = np.flatnonzero(groups[:place] == groups[place])
        is_dropped = (_likeness(shapes[place], shapes[better]) >= overlap).any()
        if is_dropped or of_class[int(classes[place])] == most_per_class:
            continue
        kept.append(place)
        of_class[int(classes[place])] += 1
        if len(kept) == most:
            break
    return kept


def _gaussians(boxes: Array) -> Array:
    """Return float64 [n, 5] of turned boxes [n, 5]: center, and the covariance a, b and c of each as a Gaussian."""
    x, y, width, height, angle = convert(boxes, "float64").T
    wide, high, cos, sin = width**2 / 12, height**2 / 12, np.cos(angle), np.sin(angle)
    return np.stack(
        [x, y, wide * cos**2 + high * sin**2, wide * sin**2 + high * cos**2, (wide - high) * cos * sin], axis=1
    )


_SMALL = 1e-7
"""What ultralytics adds against divisions by zero."""


def _likeness(one: Array, others: Array) -> Array:
    """Return float64 [n]: how much Gaussians [n, 5] are like one [5], from 0 to 1, by Hellinger's distance."""
    a, b, c = one[2] + others[:, 2], one[3] + others[:, 3], one[4] + others[:, 4]
    x, y = one[0] - others[:, 0], one[1] - others[:, 1]
    area = a * b - c**2
    near = (a * y**2 + b * x**2) / (area + _SMALL) / 4 - c * x * y / (area + _SMALL) / 2
    own = [(shape[..., 2] * shape[..., 3] - shape[..., 4] ** 2).clip(0) for shape in (one, others)]
    shape = np.log(area / (4 * np.sqrt(own[0] * own[1]) + _SMALL) + _SMALL) / 2
    return np.asarray(1 - np.sqrt(1 - np.exp(-(near + shape).clip(_SMALL, 100)) + _SMALL))


def _too_close(boxes: Array, groups: Array, better: Array, others: Array, overlap: float) -> Array:
    """Return bool arrays: whether boxes of one group overlap by more than `overlap`.

    `better` and `others` are indices of boxes [n, 4]; they are broadcast against each other.
    """
    one, other = boxes[better], boxes[others]
    common = (np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])).clip(0).prod(axis=-1)
    areas = [(box[..., 2:] - box[..., :2]).clip(0).prod(axis=-1) for box in (one, other)]
    return np.asarray((groups[better] == groups[others]) & (common > overlap * (areas[0] + areas[1] - common)))
