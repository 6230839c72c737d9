"""`expand: AXIS` — a new dimension of one; axis 0 is the first dimension of a row."""

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Options


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    if tensor.shape is None:
        return (TensorType(tensor.dtype),)
    axis = options["expand"]
    rank = len(tensor.shape) - 1  # of one row
    if not -rank - 1 <= axis <= rank:
        raise InapplicableError(f"a row of {tensor} has no place for axis {axis}")
    place = axis + 1 if axis >= 0 else len(tensor.shape) + 1 + axis
    return (TensorType(tensor.dtype, (*tensor.shape[:place], 1, *tensor.shape[place:])),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    axis = options["expand"]
    return lambda array: (np.expand_dims(array, axis + 1 if axis >= 0 else axis),)
