"""`pad: [HEIGHT, WIDTH]` — at least that size, the image in the middle; a larger one stays as it is."""

import numpy as np

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options, image_axes, resized


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    sizes = {}
    for axis, size in zip(image_axes(tensor)[:2], options["pad"], strict=True):
        have = tensor.shape[axis] if tensor.shape else None
        sizes[axis] = max(have, size) if isinstance(have, int) else None
    return (tensor.with_shape(resized(tensor, sizes)),)


def build(options: Options, tensor: TensorType) -> Apply:
    axes = image_axes(tensor)[:2]

    def apply(array: Array) -> tuple[Array, ...]:
        widths = [(0, 0)] * array.ndim
        for axis, size in zip(axes, options["pad"], strict=True):
            missing = max(size - array.shape[axis], 0)
            widths[axis] = (missing // 2, missing - missing // 2)
        return (np.pad(array, widths, constant_values=options.get("value", 0)),)

    return apply
