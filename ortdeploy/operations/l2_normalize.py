"""`l2_normalize` — vectors along the last dimension divided by their length; one of length zero stays."""

from collections.abc import Mapping

import numpy as np

from ortdeploy.operations.protocol import Call, Column, Types, need_floating
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Options

PACKAGE = None
TAKES: Types = {}


def infer(options: Options, types: Types) -> tuple[TensorType, ...]:  # noqa: ARG001  it has no options
    need_floating(types, "x")
    return (types["x"],)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        array = np.asarray(values["x"])
        length = np.linalg.norm(array, axis=-1, keepdims=True)
        return (np.asarray(array / np.maximum(length, np.finfo(array.dtype).tiny), dtype=array.dtype),)

    return apply
