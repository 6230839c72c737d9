"""`top_k: COLUMN, k: K, as: NAME` — the indices of the K largest values, largest first; values_as keeps the values."""

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options, need_numeric


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    need_numeric(tensor)
    if tensor.shape is None:
        index, value = TensorType("int64"), TensorType(tensor.dtype)
        return (index, value) if "values_as" in options else (index,)
    classes = tensor.shape[-1]
    if len(tensor.shape) < 2:  # noqa: PLR2004  rows and classes
        raise InapplicableError(f"it works along a dimension within the row and gets {tensor}")
    if isinstance(classes, int) and classes < options["k"]:
        raise InapplicableError(f"k is {options['k']} and the last dimension has {classes}")
    shape = (*tensor.shape[:-1], options["k"])
    index, value = TensorType("int64", shape), TensorType(tensor.dtype, shape)
    return (index, value) if "values_as" in options else (index,)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    k, with_values = options["k"], "values_as" in options

    def apply(array: Array) -> tuple[Array, ...]:
        if array.shape[-1] < k:
            raise ValueError(f"top_k wants {k} of {array.shape[-1]} values")
        # Sorting the reversed row stably and reading it backwards puts the lower of equal indices first, as ONNX does.
        backwards = np.argsort(array[..., ::-1], axis=-1, kind="stable")[..., : -k - 1 : -1]
        index = array.shape[-1] - 1 - backwards
        return (index, np.take_along_axis(array, index, axis=-1)) if with_values else (index,)

    return apply
