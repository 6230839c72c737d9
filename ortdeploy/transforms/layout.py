"""`layout: NCHW | NHWC` — transposes an image; one that already has that layout stays.

Images are read as NHWC. Other arrays say what they are with `from:`, for a shape alone does not tell.
"""

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Options, image_axes

_TO_NCHW = (0, 3, 1, 2)
_TO_NHWC = (0, 2, 3, 1)


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    image_axes(tensor)
    wanted = options["layout"]
    start = _start(options, tensor)
    if start is None:
        raise InapplicableError("the layout it starts from is not known; add it, as in {layout: NCHW, from: NHWC}")
    if tensor.layout not in {None, start}:
        raise InapplicableError(f"it is said to start from {start} and the image is {tensor.layout}")
    order = _order(wanted, start)
    shape = tuple(tensor.shape[axis] for axis in order) if tensor.shape else None
    return (TensorType(tensor.dtype, shape, wanted),)


def build(options: Options, tensor: TensorType) -> Apply:
    order = _order(options["layout"], _start(options, tensor))
    return lambda array: (np.ascontiguousarray(array.transpose(order)),)


def _start(options: Options, tensor: TensorType) -> str | None:
    return options.get("from") or tensor.layout


def _order(wanted: str, start: str | None) -> tuple[int, ...]:
    if wanted == start:
        return (0, 1, 2, 3)
    return _TO_NCHW if wanted == "NCHW" else _TO_NHWC
