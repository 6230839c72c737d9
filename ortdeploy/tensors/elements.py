"""Arrays of element types by name, with those that numpy does not have: ml_dtypes' arrays, which onnx brings along.

ml_dtypes wraps whole numbers that do not fit ([300] becomes [-4] as int4) and turns large ones into infinities or NaN;
`conversion` refuses both.
"""

from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import WIDER

_ADDED = 2  # numpy's mark of a type that another package adds


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the element type of arrays; text is `object`, as ONNX Runtime takes it."""
    if name in WIDER:
        import ml_dtypes  # noqa: PLC0415  only for such tensors

        return np.dtype(getattr(ml_dtypes, name))  # type: ignore[no-any-return]  # ml_dtypes is untyped
    return np.dtype(object if name == "string" else name)


def is_narrow(array: Array) -> bool:
    """Return whether an array […] has an element type that numpy does not have."""
    return array.dtype.isbuiltin == _ADDED


def widened(array: Array) -> Array:
    """Return the same values […] in a type of numpy."""
    return array.astype(WIDER[array.dtype.name]) if is_narrow(array) else array
