"""`layout: NCHW | NHWC` — transposes an image; an image that has the layout already stays as it is.

Images are read as NHWC. For other arrays, `from:` names their layout, because a shape alone does not show it.
"""

import numpy as np

from ortdeploy.tensors.contracts import (
    ANY,
    IMAGE,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    Types,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

_TO_NCHW = (0, 3, 1, 2)
_TO_NHWC = (0, 2, 3, 1)


def _transpose(solved: Solved, types: Types) -> None:
    """Find the layout that comes in, and reorder the axes of the shape. Raises ContractError."""
    tensor, start = types["x"], _start(solved.options, types["x"])
    if start is None:
        raise ContractError("the layout it starts from is not known; add it, as in {layout: NCHW, from: NHWC}")
    if tensor.layout not in {None, start}:
        raise ContractError(f"it is said to start from {start} and the image is {tensor.layout}")
    solved.layout = solved.options["layout"]
    if tensor.shape is not None:
        solved.sizes.update(zip(_AXES[start], tensor.shape, strict=True))


_AXES = {str(form.layout): tuple(map(str, form.axes)) for form in IMAGE}

CONTRACT = Contract(
    name="layout",
    meaning="Transposes an image; one that already has that layout stays",
    inputs=(FormalParameter("x", "T", IMAGE, "images"),),
    outputs=(FormalParameter("image", "T", IMAGE, "images in the layout", keeps=("unit",)),),
    attributes=(
        Attribute("layout", "STRING", "the layout to reach", required=True, choices=("NCHW", "NHWC")),
        Attribute("from", "STRING", "the layout to start from", choices=("NCHW", "NHWC")),
    ),
    types=(ANY,),
    arithmetic=_transpose,
)


def build(options: Options, tensor: TensorType) -> Apply:
    order = _order(options["layout"], _start(options, tensor))
    return lambda array: (np.ascontiguousarray(array.transpose(order)),)


def _start(options: Options, tensor: TensorType) -> str | None:
    return options.get("from") or tensor.layout


def _order(wanted: str, start: str | None) -> tuple[int, ...]:
    if wanted == start:
        return (0, 1, 2, 3)
    return _TO_NCHW if wanted == "NCHW" else _TO_NHWC
