"""`letterbox` — scales an image into `size: [height, width]` without changing its proportions, and fills up the rest.

The first result is the image. The second, float32 [rows, 6], says how it was made: the factors for x and y, the pixels
added at the left and at the top, and the original height and width. `unletterbox` takes it to convert boxes back. The
image is centered; with `place: top_left`, it is filled up only at the right and the bottom. With `only: shrink`, a
small image is not enlarged.
"""

import numpy as np

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    FIT,
    IMAGE_SIZES,
    PICTURES,
    Attribute,
    Contract,
    FormalParameter,
    SizeConstraint,
    Solved,
    forms,
    image_size,
)
from ortdeploy.transforms.fitting import PLACE, before, inside, padded
from ortdeploy.transforms.protocol import Options
from ortdeploy.transforms.sampling import PILLOW, SAMPLING, hold_method, sampler

PACKAGE = PILLOW

_GREY = 114
"""The grey value that YOLO models were trained with around images."""


def _hold_method(solved: Solved, types: Types) -> None:  # noqa: ARG001  a setting alone
    hold_method(solved.options)


CONTRACT = Contract(
    name="letterbox",
    meaning="An image scaled into a size with its sides in proportion, and filled up; and how that was done",
    inputs=(FormalParameter("image", "T", forms("NHWC rows height width channels"), "images"),),
    outputs=(
        FormalParameter("image", "T", forms("NHWC rows new_height new_width channels"), "images of one size"),
        FormalParameter(
            "how", "float32", forms("rows 6"), "factors across and down, left, top, height, width", units=(FIT,)
        ),
    ),
    attributes=(
        image_size("size", binds=("new_height", "new_width")),
        Attribute("value", "FLOAT", "what is filled up with", default=_GREY),
        PLACE,
        Attribute("only", "STRING", "images that would grow stay", choices=("shrink",)),
        *SAMPLING,
    ),
    types=(PICTURES,),
    sizes=(*IMAGE_SIZES, SizeConstraint("channels", least=1)),
    arithmetic=_hold_method,
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every image
    height, width = options["size"]
    place, sample = options["place"], sampler(options)

    def fit(image: Array) -> tuple[Array, Array]:
        inner = inside(height, width, image, may_grow="only" not in options)
        scaled = image if inner == image.shape[:2] else sample(image, *inner)
        left, top = before(width - inner[1], place), before(height - inner[0], place)
        factors = inner[1] / image.shape[1], inner[0] / image.shape[0]
        how = np.array([*factors, left, top, *image.shape[:2]], dtype=np.float32)
        return padded(scaled, (0, 1), (height, width), place, options["value"]), how

    return by_row(fit, 2, "image")
