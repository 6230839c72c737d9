"""`squeeze: AXIS` — removes a dimension of one; axis 0 is the first dimension of a row."""

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Options


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    if tensor.shape is None:
        return (TensorType(tensor.dtype),)
    axis = options["squeeze"]
    rank = len(tensor.shape) - 1  # of one row
    if not -rank <= axis < rank:
        raise InapplicableError(f"a row of {tensor} has no axis {axis}")
    place = axis + 1 if axis >= 0 else len(tensor.shape) + axis
    if isinstance(tensor.shape[place], int) and tensor.shape[place] != 1:
        raise InapplicableError(f"axis {axis} of a row of {tensor} is not 1")
    return (TensorType(tensor.dtype, tensor.shape[:place] + tensor.shape[place + 1 :]),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    axis = options["squeeze"]
    return lambda array: (np.squeeze(array, axis=axis + 1 if axis >= 0 else axis),)
