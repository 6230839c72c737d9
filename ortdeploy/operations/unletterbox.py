"""`unletterbox` — boxes in the pixels of an image before `letterbox`, by what that said of `how` it was done."""

import numpy as np

from ortdeploy.operations.protocol import BOXES, Array, Call, Types, by_row, need_rank
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Options

PACKAGE = None
TAKES: Types = {}


def infer(options: Options, types: Types) -> tuple[TensorType, ...]:  # noqa: ARG001  it has no options
    need_rank(types, "boxes", 3, "boxes [rows, n, 4]")
    need_rank(types, "how", 2, "what letterbox gives, [rows, 3]")
    return (TensorType("float32", BOXES),)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def back(boxes: Array, how: Array) -> tuple[Array]:
        factor, left, top = (float(number) for number in how)
        moved = np.asarray(boxes, dtype=np.float32).reshape(-1, 4) - np.array([left, top, left, top], dtype=np.float32)
        return (moved / np.float32(factor),)

    return by_row(back, 1, "boxes", "how")
