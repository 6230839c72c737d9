"""Turns values that the manifest writes for a model's input into the arrays that are fed."""

from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import Shape, format_shape, shapes_agree


def as_array(content: Any, dtype: str, shape: Shape | None) -> Array:
    """Return a value as an array of an input's type. One value fills a shape whose sizes are all known.

    Raises ValueError, in words, for a value that the input cannot take.
    """
    try:
        written = np.asarray(content)
    except ValueError as error:
        raise ValueError("its nested lists differ in length") from error
    if written.dtype.kind not in ("U" if dtype == "string" else "b" if dtype == "bool" else "iuf"):
        raise ValueError(f"it is no {dtype}")
    array = convert(written, dtype)
    if shape is None:
        return array
    sizes = [size for size in shape if isinstance(size, int)]
    if array.ndim == 0 and len(sizes) == len(shape):
        return np.full(sizes, array[()], dtype=array.dtype)
    if not shapes_agree(array.shape, shape):
        raise ValueError(f"it is {format_shape(array.shape)}, and {format_shape(shape)} is wanted")
    return array
