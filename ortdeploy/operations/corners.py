"""`corners` — the corners of turned boxes [n, 5]: center x, center y, width, height and angle in radians, clockwise.

They are [n, 4, 2], clockwise from the left top one of the box before it was turned: `crop` takes them, and so does
`unletterbox`.
"""

import numpy as np

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import COORDINATES, PIXELS, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options

CONTRACT = Contract(
    name="corners",
    meaning="The four corners of turned boxes",
    inputs=(
        FormalParameter("boxes", "B", forms("rows n 5"), "center x, center y, width, height, angle", units=(PIXELS,)),
    ),
    outputs=(
        FormalParameter(
            "corners", "float32", forms("rows n 4 2"), "the corners, clockwise from left top", units=(PIXELS,)
        ),
    ),
    types=(COORDINATES,),
)

_FROM_CENTER = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) / 2


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def turned(boxes: Array) -> tuple[Array]:
        boxes = convert(boxes, "float64")
        flat = _FROM_CENTER * boxes[:, np.newaxis, 2:4]
        cos, sin = np.cos(boxes[:, 4]), np.sin(boxes[:, 4])
        turn = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], axis=1)  # [n, 2, 2]
        return (convert(boxes[:, np.newaxis, :2] + flat @ turn, "float32"),)

    return by_row(turned, 1, "boxes")
