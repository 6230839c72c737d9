"""Tells the bytes of values and constants from their types."""

import math

import onnx


def value_bytes(kind: onnx.TypeProto) -> int | None:
    """Return a tensor's size in bytes; None if a dimension is not known, or it is no tensor of numbers."""
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return math.prod(dim.dim_value for dim in tensor.shape.dim) * element_bytes(tensor.elem_type)


def constant_bytes(tensor: onnx.TensorProto) -> int:
    """Return what a constant takes in memory, in bytes, wherever its values lie."""
    return math.prod(tensor.dims) * element_bytes(tensor.data_type)


def element_bytes(element_type: int) -> int:
    """Return the bytes of one element; 16 for text."""
    if element_type == onnx.TensorProto.STRING:
        return 16
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(element_type).itemsize)
    except (KeyError, ValueError, TypeError):
        return 1
