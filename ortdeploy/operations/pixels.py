"""`pixels` — numbers from 0 to 1, such as a mask or an image, as uint8 from 0 to 255; what lies beyond is cut."""

from collections.abc import Mapping

import numpy as np

from ortdeploy.operations.protocol import Call, Column, Types, as_column, need_floating
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Array, Options

PACKAGE = None
TAKES: Types = {}


def infer(options: Options, types: Types) -> tuple[TensorType, ...]:  # noqa: ARG001  it has no options
    need_floating(types, "x")
    return (TensorType("uint8", types["x"].shape, types["x"].layout),)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        column = values["x"]
        return (as_column([_pixels(row) for row in column]) if isinstance(column, list) else _pixels(column),)

    return apply


def _pixels(array: Array) -> Array:
    if not np.isfinite(array).all():
        raise ValueError("an image holds NaN or an infinity")
    return np.round(np.clip(array, 0, 1) * 255).astype(np.uint8)
