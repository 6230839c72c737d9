"""`mean_pool` — the mean over the tokens of [rows, tokens, width] that a mask [rows, tokens] keeps."""

from collections.abc import Mapping

import numpy as np

from ortdeploy.operations.protocol import Call, Column, Types, need_floating, need_rank
from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Options

PACKAGE = None
TAKES: Types = {}


def infer(options: Options, types: Types) -> tuple[TensorType, ...]:  # noqa: ARG001  it has no options
    need_floating(types, "x")
    shape = need_rank(types, "x", 3, "[rows, tokens, width]")
    mask = need_rank(types, "mask", 2, "[rows, tokens]")
    if shape and mask and isinstance(shape[1], int) and isinstance(mask[1], int) and shape[1] != mask[1]:
        raise InapplicableError(f"x has {shape[1]} tokens, and the mask {mask[1]}")
    return (types["x"].with_shape((shape[0], shape[2]) if shape else None),)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        array = np.asarray(values["x"])
        mask = np.asarray(values["mask"])[..., np.newaxis].astype(array.dtype)
        if array.shape[:2] != mask.shape[:2]:
            raise ValueError(f"x is {list(array.shape)}, and the mask {list(mask.shape[:2])}")
        return ((array * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1),)

    return apply
