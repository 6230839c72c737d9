"""What a prepare or postprocess step is.

A step is a module with two functions and no state. Arrays carry the rows in their first dimension, so a step on a
whole batch is one numpy call. `options` is the step as written in the manifest, already checked by the schema.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ortdeploy.tensors.types import InapplicableError, Shape, TensorType

Array = npt.NDArray[Any]
Options = Mapping[str, Any]
Apply = Callable[[Array], tuple[Array, ...]]
"""Rows in, rows out; as many arrays as `infer` returned types."""


class Transform(Protocol):
    """The two functions of a step's module."""

    def infer(self, options: Options, tensor: TensorType) -> tuple[TensorType, ...]:
        """Return what comes out, as far as it can be known. Raises InapplicableError."""

    def build(self, options: Options, tensor: TensorType) -> Apply:
        """Return the function that does it, for tensors of this type."""


def image_axes(tensor: TensorType) -> tuple[int, int, int]:
    """Return the axes of height, width and channels; without a declared layout, rows are taken as NHWC."""
    if tensor.shape is not None and len(tensor.shape) != 4:  # noqa: PLR2004  rows, channels, height, width
        raise InapplicableError(f"it works on images of rank 4 and gets {tensor}")
    return (2, 3, 1) if tensor.layout == "NCHW" else (1, 2, 3)


def need_nhwc(tensor: TensorType) -> tuple[int, int, int]:
    """Return the image axes of a tensor that is still in the layout images are read in."""
    axes = image_axes(tensor)
    if tensor.layout == "NCHW":
        raise InapplicableError("it comes after layout: NCHW; put it before")
    return axes


def resized(tensor: TensorType, sizes: Mapping[int, int | None]) -> Shape | None:
    """Return the tensor's shape with some axes of another size."""
    if tensor.shape is None:
        return None
    return tuple(sizes.get(axis, size) for axis, size in enumerate(tensor.shape))


def need_numeric(tensor: TensorType) -> None:
    """Refuse text, which arithmetic steps cannot take."""
    if tensor.dtype == "string":
        raise InapplicableError("it needs numbers and gets text")


def as_floating(array: Array) -> Array:
    """Integers and booleans become float32, the type that models compute in; floating types stay."""
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float32)


def floating_type(dtype: str | None) -> str | None:
    """Return the element type that `as_floating` gives."""
    if dtype is None or dtype.startswith("float"):
        return dtype
    return "float32"
