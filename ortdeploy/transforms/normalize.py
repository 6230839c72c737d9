"""`normalize: {mean, std}` — (value - mean) / std, with one number or one for each channel."""

from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    NUMBERS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    Types,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.elements import widened
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, computing_type, image_axes, result_type


def _hold_channels(solved: Solved, types: Types) -> None:
    """Check that there is one number, or one for each channel. Raises ContractError."""
    channels = solved.size("channels")
    for key in ("mean", "std"):
        numbers = solved.options["normalize"][key]
        if isinstance(numbers, list) and "channels" not in solved.sizes and types["x"].shape is not None:
            raise ContractError(f"{key} has {len(numbers)} numbers and {types['x']} no channels")
        if isinstance(numbers, list) and channels is not None and len(numbers) != channels:
            raise ContractError(f"{key} has {len(numbers)} numbers and the tensor {channels} channels")
    std = solved.options["normalize"]["std"]
    if 0 in (std if isinstance(std, list) else [std]):
        raise ContractError("std holds 0, which would divide by zero")


_LAYOUTS = forms("NHWC rows height width channels", "NCHW rows channels height width", "rows *dims channels", "rows")

CONTRACT = Contract(
    name="normalize",
    meaning="(value - mean) / std, per channel",
    inputs=(FormalParameter("x", "T", _LAYOUTS, "images, or vectors of channels"),),
    outputs=(FormalParameter("normalized", "float(T)", _LAYOUTS, "the values", keeps=("layout",)),),
    attributes=(
        Attribute("normalize.mean", "FLOATS", "what is subtracted: one number, or one per channel", required=True),
        Attribute("normalize.std", "FLOATS", "what is divided by: one number, or one per channel", required=True),
    ),
    types=(NUMBERS,),
    arithmetic=_hold_channels,
)


def build(options: Options, tensor: TensorType) -> Apply:
    axis = _channel_axis(tensor)

    def apply(array: Array) -> tuple[Array, ...]:
        dtype = computing_type(array)
        mean, std = (_along(options["normalize"][key], axis, array.ndim, dtype) for key in ("mean", "std"))
        normalized = np.subtract(widened(array), mean, dtype=dtype)
        return (convert(np.divide(normalized, std, out=normalized), result_type(array)),)

    return apply


def _channel_axis(tensor: TensorType) -> int:
    if tensor.layout is None:
        return -1
    return image_axes(tensor)[2]


def _along(numbers: float | list[float], axis: int, rank: int, dtype: "np.dtype[Any]") -> Array:
    """Return one number, or one for each channel, in a shape that broadcasts along an axis of [rows, …].

    Numbers of channels become [1, channels, 1, 1] for an array [rows, channels, height, width].
    """
    values = np.asarray(numbers, dtype=dtype)
    if values.ndim == 0:
        return values
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)
