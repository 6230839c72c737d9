"""`sigmoid: COLUMN, as: NAME` — 1 / (1 + exp(-x)), without overflow."""

import numpy as np

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options, as_floating, floating_type, need_numeric


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:  # noqa: ARG001  it has no options
    need_numeric(tensor)
    return (TensorType(floating_type(tensor.dtype), tensor.shape),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    return lambda array: (sigmoid(as_floating(array)),)


def sigmoid(values: Array) -> Array:
    """Both sides of zero by the form whose exponential stays below one."""
    small = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1 / (1 + small), small / (1 + small)).astype(values.dtype))
