"""`normalize: {mean, std}` — (value - mean) / std, per channel."""

import numpy as np

from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import (
    Apply,
    Array,
    Options,
    as_floating,
    floating_type,
    image_axes,
    need_numeric,
)


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
    need_numeric(tensor)
    axis = _channel_axis(tensor)
    channels = tensor.shape[axis] if tensor.shape else None
    for key in ("mean", "std"):
        numbers = options["normalize"][key]
        if isinstance(numbers, list) and isinstance(channels, int) and len(numbers) != channels:
            raise InapplicableError(f"{key} has {len(numbers)} numbers and the tensor {channels} channels")
    std = options["normalize"]["std"]
    if 0 in (std if isinstance(std, list) else [std]):
        raise InapplicableError("std holds 0, which would divide by zero")
    return (TensorType(floating_type(tensor.dtype), tensor.shape, tensor.layout),)


def build(options: Options, tensor: TensorType) -> Apply:
    axis = _channel_axis(tensor)

    def apply(array: Array) -> tuple[Array, ...]:
        floating = as_floating(array)
        mean, std = (_along(options["normalize"][key], axis, floating) for key in ("mean", "std"))
        return ((floating - mean) / std,)

    return apply


def _channel_axis(tensor: TensorType) -> int:
    if tensor.layout is None:
        return -1
    return image_axes(tensor)[2]


def _along(numbers: float | list[float], axis: int, array: Array) -> Array:
    """Shape per-channel numbers so that they meet the channels, whichever axis those are on."""
    values = np.asarray(numbers, dtype=array.dtype)
    if values.ndim == 0:
        return values
    shape = [1] * array.ndim
    shape[axis] = values.size
    return values.reshape(shape)
