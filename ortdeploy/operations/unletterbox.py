"""`unletterbox` — boxes in the pixels of an image before `letterbox`, by what that said of `how` it was done."""

from dataclasses import replace

import numpy as np

from ortdeploy.operations.protocol import BOXES, Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import COORDINATES, FIT, PIXELS, REALS, Contract, FormalParameter, forms
from ortdeploy.transforms.protocol import Options

PACKAGE = None


CONTRACT = Contract(
    name="unletterbox",
    meaning="Boxes in the pixels of the image before letterbox",
    inputs=(
        FormalParameter("boxes", "B", forms("rows n 4"), "left, top, right, bottom in pixels", units=(PIXELS,)),
        FormalParameter(
            "how", "H", forms("rows 3"), "what letterbox gives: factor, left, top", units=(FIT,), finite=True
        ),
    ),
    outputs=(BOXES,),
    types=(COORDINATES, replace(REALS, name="H")),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def back(boxes: Array, how: Array) -> tuple[Array]:
        factor, left, top = (float(number) for number in how)
        if factor <= 0:
            raise ValueError(f"the factor of how is {factor:g}; it takes what letterbox gives")
        moved = np.asarray(boxes, dtype=np.float32) - np.array([left, top, left, top], dtype=np.float32)
        return (moved / np.float32(factor),)

    return by_row(back, 1, "boxes", "how")
