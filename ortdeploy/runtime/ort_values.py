"""Tensors of the element types that numpy does not have, through OrtValue and ml_dtypes' arrays.

onnxruntime's Python binding takes and gives numpy arrays only of numpy's own types ("Numpy_type 256 can't be converted
to MLDataType"); an OrtValue carries any of them as plain bytes. ml_dtypes comes with onnx.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort

_NUMBERS = {"bfloat16": 16, "float8_e4m3fn": 17, "float8_e4m3fnuz": 18, "float8_e5m2": 19, "float8_e5m2fnuz": 20}
"""TensorProto's numbers, by ml_dtypes' names."""

_TYPES = frozenset(f"tensor({name.replace('_', '')})" for name in _NUMBERS)


def needs_ort_values(session: ort.InferenceSession) -> bool:
    """Tell whether an input or output of a session has a type that numpy does not have."""
    return any(value.type in _TYPES for value in (*session.get_inputs(), *session.get_outputs()))


def run_with_ort_values(
    session: ort.InferenceSession, outputs: Sequence[str], feeds: Mapping[str, Any], options: ort.RunOptions | None
) -> list[Any]:
    """Run once; arrays of ml_dtypes' types go in and come out."""
    values = {name: _to_value(array) for name, array in feeds.items()}
    return [_to_array(value) for value in session.run_with_ort_values(list(outputs), values, options)]


def _to_value(array: Any) -> ort.OrtValue:
    number = _NUMBERS.get(array.dtype.name)
    if number is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    plain = np.ascontiguousarray(array).view(np.uint16 if array.itemsize == 2 else np.uint8)  # noqa: PLR2004  bytes
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, number)


def _to_array(value: ort.OrtValue) -> Any:
    if not value.is_tensor() or value.data_type() not in _TYPES:
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(raw, _dtypes()[value.element_type()]).reshape(value.shape())


@cache
def _dtypes() -> dict[int, Any]:
    import ml_dtypes  # noqa: PLC0415  only who has such tensors

    return {number: np.dtype(getattr(ml_dtypes, name)) for name, number in _NUMBERS.items()}
