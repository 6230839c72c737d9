"""`softmax: COLUMN, as: NAME` — probabilities along the last dimension, without overflow."""

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options, as_floating, floating_type, need_numeric


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:  # noqa: ARG001  it has no options
    need_numeric(tensor)
    if tensor.shape is not None and len(tensor.shape) < 2:  # noqa: PLR2004  rows and classes
        raise InapplicableError(f"it works along a dimension within the row and gets {tensor}")
    return (TensorType(floating_type(tensor.dtype), tensor.shape),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    return lambda array: (softmax(as_floating(array)),)


def softmax(scores: Array) -> Array:
    """Exponentials of the distance to the largest score, which never overflow, over their sum."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))
