"""`flatten: true` — each row becomes a vector."""

import math

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:  # noqa: ARG001  it has no options
    if tensor.shape is None:
        return (TensorType(tensor.dtype),)
    row = [size for size in tensor.shape[1:] if isinstance(size, int)]
    known = len(row) == len(tensor.shape) - 1
    return (TensorType(tensor.dtype, (tensor.shape[0], math.prod(row) if known else None)),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    return lambda array: (array.reshape(len(array), math.prod(array.shape[1:])),)
