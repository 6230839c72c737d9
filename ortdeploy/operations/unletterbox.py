"""`unletterbox` — converts boxes from the letterboxed image back to the original; `how` is a result of `letterbox`.

Boxes are kept inside of the original image; a box beside it has no area. A `how` of three numbers (factor, left, top)
does not have the size of the image: then boxes are only moved and scaled.
"""

import numpy as np
from msgspec.structs import replace

from ortdeploy.operations.protocol import BOXES, Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import COORDINATES, FIT, PIXELS, REALS, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options

PACKAGE = None

_WITHOUT_SIZE = 3
"""The length of a short `how`: one factor, left and top."""


CONTRACT = Contract(
    name="unletterbox",
    meaning="Boxes in the pixels of the image before letterbox",
    inputs=(
        FormalParameter("boxes", "B", forms("rows n 4"), "left, top, right, bottom in pixels", units=(PIXELS,)),
        FormalParameter("how", "H", forms("rows 6", "rows 3"), "what letterbox gives", units=(FIT,), finite=True),
    ),
    outputs=(BOXES,),
    types=(COORDINATES, replace(REALS, name="H")),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def back(boxes: Array, how: Array) -> tuple[Array]:
        across, down, left, top, height, width = how if len(how) > _WITHOUT_SIZE else (how[0], *how, 0, 0)
        if across <= 0 or down <= 0:
            raise ValueError(f"the factor of how is {min(across, down):g}; it takes what letterbox gives")
        moved = convert(boxes, "float32") - np.array([left, top, left, top], dtype=np.float32)
        scaled = moved / np.array([across, down, across, down], dtype=np.float32)
        if len(how) == _WITHOUT_SIZE:
            return (scaled,)
        return (scaled.clip(0, np.array([width, height, width, height], dtype=np.float32)),)

    return by_row(back, 1, "boxes", "how")
