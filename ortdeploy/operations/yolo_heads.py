"""`yolo_heads` — decodes the raw heads of YOLO v5 and v7 into the single output that other exports have.

`p3` to `p6` are the heads of strides 8, 16, 32 and 64: [rows, anchors, height, width, 5 + classes], or
[rows, anchors * (5 + classes), height, width] as convolutions give them. With s = sigmoid(value), the center of a box
is (2 s - 0.5 + cell) * stride, and its width and height are (2 s)^2 * anchor. `anchors` are the widths and heights of
the anchors in pixels of the network's image, from the first head that is given to the last. The result is float32
[rows, n, 5 + classes], which `yolo_decode` takes.

Sources: the class Detect of ultralytics/yolov5 and of WongKinYiu/yolov7.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortdeploy.operations.protocol import Call, Types, as_column
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contracts import (
    OPTIONAL,
    REALS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    SizeConstraint,
    Solved,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options
from ortdeploy.transforms.sigmoid import sigmoid

ANCHORS = "anchors"
"""The setting, and the default key in a model's metadata."""
NUMBERS = "numbers"
"""The option under which a plan holds the anchors from a model's metadata."""

_STRIDES = {"p3": 8, "p4": 16, "p5": 32, "p6": 64}
_PLANES = 3
"""The rank of a row's head whose anchors and values are one axis of channels."""
_LEAST = 6
"""Center x and y, width, height, objectness, and at least one class."""


def _hold_anchors(solved: Solved, types: Types) -> None:
    """Check the anchors against the heads, and compute the number of boxes. Raises ContractError."""
    heads = [name for name in _STRIDES if name in types]
    if not heads:
        raise ContractError(f"it takes one head at least, as {', '.join(_STRIDES)}, and gets none")
    named = [name for name in (ANCHORS, "model") if name in solved.options]
    if len(named) != 1:
        raise ContractError(f"it takes its anchors from anchors or model, and gets {' and '.join(named) or 'none'}")
    numbers = np.size(_anchors(solved.options))
    if not numbers:  # the model says why
        return
    each, rest = divmod(numbers, 2 * len(heads))
    if rest or not each:
        raise ContractError(
            f"anchors are widths and heights, as many for each head, and these are {numbers} numbers for {len(heads)}"
        )
    _hold_values(solved, each)
    counts = [_cells(solved, name) for name in heads]
    known = [count for count in counts if count is not None]
    solved.sizes["n"] = each * sum(known) if len(known) == len(counts) else None


def _hold_values(solved: Solved, each: int) -> None:
    """Check the anchors and values of a head, or its channels, against `each` anchors a head. Raises ContractError."""
    anchors, channels, values = (solved.size(name) for name in ("anchors", "channels", "values"))
    if anchors is not None and anchors != each:
        raise ContractError(f"heads have {anchors} anchors, and {each} are given for each")
    if channels is None:
        return
    of_one, rest = divmod(channels, each)
    if rest or values not in {None, of_one}:
        what = f"{values} values" if values is not None and not rest else "values"
        raise ContractError(f"a head has {channels} channels, which are not the {what} of {each} anchors")
    solved.sizes["values"], solved.by["values"] = of_one, "channels"


def _cells(solved: Solved, name: str) -> int | None:
    height, width = solved.size(f"height_{name}"), solved.size(f"width_{name}")
    return None if height is None or width is None else height * width


def _anchors(options: Options) -> Any:
    """Return the numbers that the manifest, or the metadata of a model, gives."""
    return options.get(ANCHORS, options.get(NUMBERS, ()))


CONTRACT = Contract(
    name="yolo_heads",
    meaning="The one output of a YOLO v5 or v7 export, from heads that were exported undecoded",
    inputs=tuple(
        FormalParameter(
            name,
            "T",
            forms(f"rows anchors height_{name} width_{name} values", f"rows channels height_{name} width_{name}"),
            f"the head of stride {stride}",
            option=OPTIONAL,
            not_nan=True,
        )
        for name, stride in _STRIDES.items()
    ),
    outputs=(
        FormalParameter(
            "x", "float32", forms("rows n values"), "middle, width, height, objectness and classes of each box"
        ),
    ),
    attributes=(
        Attribute(ANCHORS, "FLOATS", "width and height of each anchor in pixels, head after head", above=0),
        Attribute("model", "STRING", "a model of the pipeline that has the anchors in its metadata", least=1, most=255),
        Attribute("metadata", "STRING", "the key of the anchors there", default=ANCHORS, least=1, most=255),
        Attribute(
            "sigmoid", "STRING", "whether the model has taken the sigmoid", default="here", choices=("here", "inside")
        ),
    ),
    types=(REALS,),
    sizes=(SizeConstraint("values", least=_LEAST),),
    arithmetic=_hold_anchors,
)


def build(options: Options, types: Types) -> Call:
    heads = [name for name in _STRIDES if name in types]
    anchors = np.asarray(_anchors(options), np.float32).reshape(len(heads), -1, 2)
    is_inside = options["sigmoid"] == "inside"

    def decode(values: Mapping[str, Column]) -> tuple[Column, ...]:
        found = [
            np.concatenate(
                [
                    _decoded(np.asarray(row), _STRIDES[name], own, is_inside)
                    for row, name, own in zip(rows, heads, anchors, strict=True)
                ]
            )
            for rows in zip(*(values[name] for name in heads), strict=True)
        ]
        return (as_column(found),)

    return decode


def _decoded(head: Array, stride: int, anchors: Array, is_inside: bool) -> Array:
    """Return boxes [anchors * height * width, values] of one row's head.

    `head` is [anchors, height, width, values] or [anchors * values, height, width], `anchors` [anchors, 2].
    """
    if head.ndim == _PLANES:
        height, width = head.shape[1:]
        head = head.reshape(len(anchors), len(head) // len(anchors), height, width).transpose(0, 2, 3, 1)
    head = convert(head, "float32")
    values = head if is_inside else sigmoid(head)
    height, width = values.shape[1:3]
    across, down = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    cells = np.stack([across, down], axis=-1)
    middles = (values[..., :2] * 2 - 0.5 + cells) * stride
    sizes = (values[..., 2:4] * 2) ** 2 * anchors[:, None, None]
    return np.concatenate([middles, sizes, values[..., 4:]], axis=-1).reshape(-1, values.shape[-1])
