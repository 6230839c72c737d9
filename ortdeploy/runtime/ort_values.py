"""Runs sessions with element types that numpy does not have, through OrtValue and ml_dtypes' arrays.

onnxruntime's Python binding takes and gives numpy arrays only of numpy's own types ("Numpy_type 256 can't be converted
to MLDataType"); an OrtValue carries any of them as plain bytes. Types smaller than a byte lie packed in it, the first
value in the lowest bits (seen on onnxruntime 1.31.1), and one to a byte in ml_dtypes' arrays.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.runtime.library import ort
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import ELEMENT_NUMBERS, ELEMENT_TYPES, WIDER

_BITS = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2}
_TYPES = {f"tensor({ELEMENT_TYPES[name]})": name for name in WIDER}


def needs_ort_values(session: ort.InferenceSession) -> bool:
    """Return whether an input or output of a session has a type that numpy does not have."""
    return any(value.type in _TYPES for value in (*session.get_inputs(), *session.get_outputs()))


def run_with_ort_values(
    session: ort.InferenceSession, outputs: Sequence[str], feeds: Mapping[str, Any], options: ort.RunOptions | None
) -> list[Any]:
    """Run once with arrays of ml_dtypes' types; return such arrays."""
    values = {name: from_array(array) for name, array in feeds.items()}
    return [to_array(value) for value in session.run_with_ort_values(list(outputs), values, options)]


def from_array(array: Any) -> ort.OrtValue:
    """Return an array of any element type as an OrtValue; the array must live as long as that."""
    if array.dtype.name not in WIDER:
        return ort.OrtValue.ortvalue_from_numpy(array)
    plain = np.ascontiguousarray(array).view(np.uint16 if array.itemsize == 2 else np.uint8)  # noqa: PLR2004  bytes
    if array.dtype.name in _BITS:
        plain = _packed(plain, _BITS[array.dtype.name])
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, ELEMENT_NUMBERS[array.dtype.name])


def to_array(value: ort.OrtValue) -> Any:
    """Return a tensor, sequence or map as Python values; tensors of narrow types as ml_dtypes' arrays."""
    if not value.is_tensor() or value.data_type() not in _TYPES:
        return value.numpy()
    name, shape = _TYPES[value.data_type()], value.shape()
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), np.uint8)
    if name in _BITS:
        raw = _unpacked(raw, math.prod(shape), _BITS[name], signed=name.startswith("int"))
    return raw.view(numpy_dtype(name)).reshape(shape)


def _packed(plain: Any, bits: int) -> Any:
    """Return an array of the same shape, which ONNX Runtime checks, whose first bytes hold all values."""
    each = 8 // bits
    values = np.zeros(-(-plain.size // each) * each, np.uint8)
    values[: plain.size] = plain.reshape(-1) & ((1 << bits) - 1)
    packed = np.zeros(plain.shape, np.uint8)
    packed.reshape(-1)[: values.size // each] = np.bitwise_or.reduce(
        values.reshape(-1, each) << (np.arange(each, dtype=np.uint8) * bits), axis=1
    )
    return packed


def _unpacked(raw: Any, count: int, bits: int, *, signed: bool) -> Any:
    """Return the array with one value per byte."""
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    values = ((raw[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]
    if signed:
        sign = np.uint8(1 << (bits - 1))
        values = ((values ^ sign) - sign).astype(np.uint8)
    return values
