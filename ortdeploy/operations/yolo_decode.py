"""`yolo_decode` — boxes and scores from the single output of a YOLO export of the given `version`.

v5, v6, v7: [rows, n, 5 + classes], center x, center y, width, height, objectness and class scores; the score of a box
is objectness times class score. v8, v9, v11, v12: [rows, 4 + classes, n], the same without objectness. v10, v26:
[rows, n, 6], left, top, right, bottom, score and class of boxes that need no `nms`. `values: first` or `values: last`
is for exports whose values stand on the other axis. Boxes whose score is below `score` are left out.

`more` is what follows the scores. With `points: [17, 3]`, as for task pose, it is points [n, 17, 3] of x, y and
visibility in pixels; for task segment it is the coefficients of masks. With `task: obb`, the last number is an
angle, and boxes are [n, 5]: center x, center y, width, height and angle.

yolox: [rows, n, 5 + classes] as v5, with boxes that count from cells of 8, 16 and 32 pixels (and 64, if n says so): the
center in cells, width and height as logarithms of cells. It needs the `size` of the network's image. An export with
decode_in_inference has pixels already: it is read as v5.

Sources: the heads of ultralytics/yolov5, WongKinYiu/yolov7, THU-MIG/yolov10, ultralytics/ultralytics and, of yolox, of
Megvii-BaseDetection/YOLOX.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ortdeploy.operations.boxes import from_cxcywh
from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    INDEX,
    PIXELS,
    PROBABILITY,
    REALS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    forms,
    image_size,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import Dimension
from ortdeploy.transforms.protocol import Options, computable

OBB = "obb"
"""The task of turned boxes."""
_OBJECTNESS, _PLAIN, _DECIDED, _CELLS = "objectness", "plain", "decided", "cells"
_HEADS = {
    **dict.fromkeys(("v5", "v6", "v7"), _OBJECTNESS),
    **dict.fromkeys(("v8", "v9", "v11", "v12"), _PLAIN),
    **dict.fromkeys(("v10", "v26"), _DECIDED),
    "yolox": _CELLS,
}
_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
"""The pixels of a cell in each of the grids that a YOLOX has, one after the other."""
_BEFORE_CLASSES = {_OBJECTNESS: 5, _PLAIN: 4, _DECIDED: 6, _CELLS: 5}
"""The numbers of a box before its classes; for v10 and v26, before further numbers of an export."""


def _hold_values(solved: Solved, types: Types) -> None:  # noqa: ARG001  the axes are solved
    """Find the axis of a box's values, and check its size against the version. Raises ContractError."""
    options = solved.options
    head, first = _HEADS[options["version"]], _values_first(options)
    values, n = (solved.size(axis) for axis in (("second", "third") if first else ("third", "second")))
    _hold_size(options, head, n)
    solved.sizes |= {"n": None if options.get("score") else n, "classes": None, "more": None}
    if head == _DECIDED:
        solved.chosen["scores"] = (_SCORE_OF_BOX,)
    if options.get("task") == OBB:
        solved.chosen["boxes"] = (_TURNED,)
    if "points" in options:
        solved.chosen["more"] = (_POINTS,)
        solved.sizes |= dict(zip(("points", "numbers"), options["points"], strict=True))
    if values is None:
        return
    where = "first" if first else "last"
    other = f"If they are on the other axis, say values: {'last' if first else 'first'}"
    stated, before, behind = options.get("classes"), _BEFORE_CLASSES[head], _behind(options)
    least = before + behind + (0 if head == _DECIDED else stated or 1)
    if values < least:
        raise ContractError(
            f"a box of YOLO {options['version']} has at least {least} values, and {values} come {where}. {other}"
        )
    if n is not None and values > n and stated is None:
        raise ContractError(
            f"{n} boxes of {values} values each come, with the values {where}. {other}; else give the number of classes"
        )
    classes = 0 if head == _DECIDED else stated or values - before - behind
    more = values - before - classes - (options.get("task") == OBB)
    if "points" in options and more != math.prod(options["points"]):
        raise ContractError(f"{more} numbers follow the scores, and points are {options['points']}")
    solved.sizes |= {"classes": classes, "more": more}


def _behind(options: Options) -> int:
    """Return how many numbers of a box are known to stand behind its scores."""
    return math.prod(options.get("points", [0])) + (options.get("task") == OBB)


def cells(size: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the strides of the grids of a YOLOX by its number of boxes, for an image of [height, width]."""
    height, width = size
    return {sum((height // one) * (width // one) for one in strides): strides for strides in _STRIDES}


def _hold_size(options: Options, head: str, n: Dimension) -> None:
    """Check the size of the network's image against the version and the number of boxes. Raises ContractError."""
    size = options.get("size")
    if (size is not None) != (head == _CELLS):
        raise ContractError(
            "size, the [height, width] of the network's image, goes with version: yolox, which needs it"
        )
    if size is not None and isinstance(n, int) and n not in cells(size):
        counts = " or ".join(f"{count:,}" for count in cells(size))
        raise ContractError(f"a YOLOX gives {counts} boxes of an image of {size[0]} x {size[1]}, and {n:,} come")


_STRAIGHT, _TURNED = forms("rows n 4", "rows n 5")
_MORE, _POINTS = forms("rows n more", "rows n points numbers")
_SCORE_OF_BOX, _SCORES_OF_CLASSES = forms("rows n", "rows n classes")


def _values_first(options: Options) -> bool:
    stated = options.get("values")
    return bool(stated == "first" if stated else _HEADS[options["version"]] == _PLAIN)


CONTRACT = Contract(
    name="yolo_decode",
    meaning="Boxes and scores from the one output of a YOLO export",
    inputs=(FormalParameter("x", "T", forms("rows second third"), "the output of the model", not_nan=True),),
    outputs=(
        FormalParameter(
            "boxes",
            "float32",
            (_STRAIGHT, _TURNED),
            "left, top, right, bottom in the network's image; of obb center, size, angle",
            units=(PIXELS,),
        ),
        FormalParameter(
            "scores",
            "float32",
            (_SCORES_OF_CLASSES, _SCORE_OF_BOX),
            "the score of each box and class; of v10 and v26 [rows, n]: that of its class",
            units=(PROBABILITY,),
        ),
        FormalParameter("classes", "int64", forms("rows n"), "the best class of each box", units=(INDEX,)),
        FormalParameter("more", "float32", (_MORE, _POINTS), "what follows, such as the coefficients of a mask"),
    ),
    attributes=(
        Attribute("version", "STRING", "the version of YOLO", required=True, choices=tuple(_HEADS)),
        Attribute("score", "FLOAT", "boxes whose best score is below are left out", default=0, least=0, most=1),
        Attribute(
            "classes",
            "INT",
            "how many classes there are, if other values follow; if left out, all that come",
            least=1,
        ),
        Attribute(
            "values", "STRING", "where the values of a box are; if left out, by version", choices=("first", "last")
        ),
        image_size("size", required=False),
        Attribute("task", "STRING", "what boxes are: obb has turned ones", default="detect", choices=("detect", OBB)),
        Attribute("points", "INTS", "how many points follow, and the numbers of each", least=1, most=65536, length=2),
    ),
    types=(REALS,),
    arithmetic=_hold_values,
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    head, first, least = _HEADS[options["version"]], _values_first(options), float(options["score"])
    split = _split_decided if head == _DECIDED else _split_raw
    is_turned, points, behind = options["task"] == OBB, options.get("points"), _behind(options)
    size = options.get("size")
    grids = {n: _grids(size, strides) for n, strides in cells(size).items()} if size is not None else {}

    def decode(x: Array) -> tuple[Array, ...]:
        x = computable(x.T if first else x)
        x = _in_pixels(x, grids) if grids else x
        count = options.get("classes")
        if count is None and head != _DECIDED:
            count = x.shape[1] - _BEFORE_CLASSES[head] - behind
        boxes, scores, classes, more = split(x, head, count)
        if is_turned:
            boxes, more = np.concatenate([x[:, :4], more[:, -1:]], axis=1), more[:, :-1]
        if points is not None:
            more = more.reshape(-1, *points)
        if least > 0:
            kept = (scores if scores.ndim == 1 else scores.max(axis=1)) >= least
            boxes, scores, classes, more = boxes[kept], scores[kept], classes[kept], more[kept]
        return (*(convert(one, "float32") for one in (boxes, scores)), classes, convert(more, "float32"))

    return by_row(decode, 4, "x")


def _grids(size: Sequence[int], strides: Sequence[int]) -> Array:
    """Return float32 [n, 3]: column and row of each cell in its grid, and the pixels of a cell."""
    height, width = size
    grids = []
    for stride in strides:
        down, across = np.indices((height // stride, width // stride), dtype=np.float32)
        grids.append(np.stack([across, down, np.full_like(down, stride)], axis=-1).reshape(-1, 3))
    return np.concatenate(grids)


def _in_pixels(x: Array, grids: Mapping[int, Array]) -> Array:
    """Return x [n, values] with centers and sizes in pixels; they come in cells, the sizes as logarithms."""
    grid, x = grids[len(x)], convert(x, "float32")
    stride = grid[:, 2:]
    return np.concatenate([(x[:, :2] + grid[:, :2]) * stride, np.exp(x[:, 2:4]) * stride, x[:, 4:]], axis=1)


def _split_raw(x: Array, head: str, classes: int | None) -> tuple[Array, Array, Array, Array]:
    """Return boxes [n, 4], scores [n, classes], best classes [n] and the rest [n, more] of x [n, values]."""
    begin = _BEFORE_CLASSES[head]
    end = x.shape[1] if classes is None else begin + classes
    scores = x[:, begin:end] * x[:, 4:5] if head in {_OBJECTNESS, _CELLS} else x[:, begin:end]
    return from_cxcywh(x[:, :4]), scores, scores.argmax(axis=1), x[:, end:]


def _split_decided(x: Array, head: str, classes: int | None) -> tuple[Array, Array, Array, Array]:
    """Return boxes [n, 4], scores [n], classes [n] and the rest [n, more] of x [n, values]."""
    named = convert(np.rint(x[:, 5]), "int64")
    if classes is not None and ((named < 0) | (named >= classes)).any():
        raise ValueError(f"a box is of class {named.max() if (named >= classes).any() else named.min()} of {classes}")
    return x[:, :4], x[:, 4], named, x[:, _BEFORE_CLASSES[head] :]
