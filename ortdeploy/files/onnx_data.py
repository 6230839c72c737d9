"""Reads and writes values in ONNX's own files. Uses onnx, like graph/."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ortdeploy.files.opening import read_whole

KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any, str], Any]]] = {
    "map": (onnx.MapProto, numpy_helper.to_dict, numpy_helper.from_dict),
    "optional": (onnx.OptionalProto, numpy_helper.to_optional, numpy_helper.from_optional),
    "sequence": (onnx.SequenceProto, numpy_helper.to_list, numpy_helper.from_list),
    "tensor": (
        onnx.TensorProto,
        numpy_helper.to_array,
        lambda content, name: numpy_helper.from_array(np.asarray(content), name),
    ),
}
"""How onnx reads and writes values, by kind."""


def read_tensor(path: str) -> npt.NDArray[Any]:
    """Return the tensor of a TensorProto file. Raises ValueError, OSError."""
    try:
        return numpy_helper.to_array(onnx.TensorProto.FromString(read_whole(path)))
    except (DecodeError, TypeError) as error:
        raise ValueError(str(error)) from error
