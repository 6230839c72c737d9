"""`unletterbox` — converts boxes or points from the letterboxed image back to the original; `how` is of `letterbox`.

Points are [n, points, 2], x and y; a third number of each, such as its visibility, stays. Boxes and points are kept
inside of the original image, so that a box beside it has no area; with `outside: keep` they stay where they are. A
`how` of three numbers (factor, left, top) does not have the size of the image: then they are only moved and scaled.
"""

import numpy as np
from msgspec.structs import replace

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import COORDINATES, FIT, PIXELS, REALS, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options

_WITHOUT_SIZE = 3
"""The length of a short `how`: one factor, left and top."""
_PLACES = forms("rows n 4", "rows n points 2", "rows n points 3")
_OF_POINTS = 3
"""The rank of points in a row's element."""


CONTRACT = Contract(
    name="unletterbox",
    meaning="Boxes, or points, in the pixels of the image before letterbox",
    inputs=(
        FormalParameter("boxes", "B", _PLACES, "left, top, right, bottom in pixels; or points", units=(PIXELS,)),
        FormalParameter("how", "H", forms("rows 6", "rows 3"), "what letterbox gives", units=(FIT,), finite=True),
    ),
    outputs=(FormalParameter("boxes", "float32", _PLACES, "the same in the image before", units=(PIXELS,)),),
    attributes=(
        Attribute("outside", "STRING", "what becomes of places beside it", default="cut", choices=("cut", "keep")),
    ),
    types=(COORDINATES, replace(REALS, name="H")),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    cuts = options["outside"] == "cut"

    def back(boxes: Array, how: Array) -> tuple[Array]:
        across, down, left, top, height, width = how if len(how) > _WITHOUT_SIZE else (how[0], *how, 0, 0)
        if across <= 0 or down <= 0:
            raise ValueError(f"the factor of how is {min(across, down):g}; it takes what letterbox gives")
        places = convert(boxes, "float32")
        flat = places[..., :2] if places.ndim == _OF_POINTS else places.reshape(-1, 2, 2)
        found = (flat - np.array([left, top], np.float32)) / np.array([across, down], np.float32)
        if cuts and len(how) > _WITHOUT_SIZE:
            found = found.clip(0, np.array([width, height], np.float32))
        if places.ndim != _OF_POINTS:
            return (found.reshape(places.shape),)
        return (np.concatenate([found, places[..., 2:]], axis=-1),)

    return by_row(back, 1, "boxes", "how")
