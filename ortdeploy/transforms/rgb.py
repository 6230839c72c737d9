"""`rgb: true` — three channels in the order red, green, blue; a grey image gets three equal ones."""

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options, image_axes, resized


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:  # noqa: ARG001  it has no options
    axis = image_axes(tensor)[2]
    if tensor.shape and tensor.shape[axis] not in {1, 3, None}:
        raise InapplicableError(f"it takes images of 1 or 3 channels and gets {tensor}")
    return (tensor.with_shape(resized(tensor, {axis: 3})),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    axis = image_axes(tensor)[2]

    def apply(array: Array) -> tuple[Array, ...]:
        return (np.repeat(array, 3, axis=axis) if array.shape[axis] == 1 else array,)

    return apply
