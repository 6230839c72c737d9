"""`scale: FACTOR` — multiplies; integers become float32."""

import numpy as np

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, as_floating, floating_type, need_numeric


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:  # noqa: ARG001  the factor has no type
    need_numeric(tensor)
    return (TensorType(floating_type(tensor.dtype), tensor.shape, tensor.layout),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    factor = float(options["scale"])

    def apply(array: np.ndarray) -> tuple[np.ndarray, ...]:
        floating = as_floating(array)
        return (floating * floating.dtype.type(factor),)

    return apply
