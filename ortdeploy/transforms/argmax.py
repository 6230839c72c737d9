"""`argmax: COLUMN, as: NAME` — the index of the largest value along the last dimension; value_as keeps the value."""

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options, need_numeric


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    need_numeric(tensor)
    if tensor.shape is not None and len(tensor.shape) < 2:  # noqa: PLR2004  rows and classes
        raise InapplicableError(f"it works along a dimension within the row and gets {tensor}")
    shape = tensor.shape[:-1] if tensor.shape else None
    index, value = TensorType("int64", shape), TensorType(tensor.dtype, shape)
    return (index, value) if "value_as" in options else (index,)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    with_value = "value_as" in options

    def apply(array: Array) -> tuple[Array, ...]:
        index = array.argmax(axis=-1)
        if not with_value:
            return (index,)
        return index, np.take_along_axis(array, index[..., None], axis=-1)[..., 0]

    return apply
