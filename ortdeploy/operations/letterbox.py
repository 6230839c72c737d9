"""`letterbox` — an image scaled into `size: [height, width]` with its sides in proportion, in the middle, filled up.

Gives the image and how it was done, float32 [rows, 6]: the factors across and down, the pixels left
of it and above it, and the height and width that it had; `unletterbox` takes that to bring boxes back.
"""

import numpy as np

from ortdeploy.facts.problems import Package
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
    forms,
    image_size,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms import resize
from ortdeploy.transforms.protocol import Options

PACKAGE = Package(module="PIL", name="Pillow", extra="images")

_GREY = 114
"""What YOLO models were trained with around their images."""


CONTRACT = Contract(
    name="letterbox",
    meaning="An image scaled into a size with its sides in proportion, in the middle, filled up; and how that was done",
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
    ),
    types=(PICTURES,),
    sizes=(*IMAGE_SIZES, SizeConstraint("channels", least=1)),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every image
    height, width = options["size"]
    value = options["value"]

    def fit(image: Array) -> tuple[Array, Array]:
        factor = min(height / image.shape[0], width / image.shape[1])
        inner = [
            max(1, min(side, round(have * factor))) for side, have in zip((height, width), image.shape, strict=False)
        ]
        same = inner == list(image.shape[:2])
        scaled = (
            image
            if same
            else resize.build({"resize": inner, "method": "bilinear"}, TensorType())(image[np.newaxis])[0][0]
        )
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        made = np.full((height, width, image.shape[2]), value, dtype=image.dtype)
        made[top : top + inner[0], left : left + inner[1]] = scaled
        return made, np.array(
            [inner[1] / image.shape[1], inner[0] / image.shape[0], left, top, *image.shape[:2]], dtype=np.float32
        )

    return by_row(fit, 2, "image")
