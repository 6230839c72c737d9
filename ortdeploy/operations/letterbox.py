"""`letterbox` — an image scaled into `size: [height, width]` with its sides in proportion, in the middle, filled up.

Gives the image and how it was done, float32 [rows, 3]: the factor, and the pixels left of it and above it;
`unletterbox` takes that to bring boxes back.
"""

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.operations.protocol import IMAGE_RANK, Array, Call, Types, by_row, need_rank
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms import resize
from ortdeploy.transforms.protocol import Options

PACKAGE = Package(module="PIL", name="Pillow", extra="images")
TAKES: Types = {}

_GREY = 114
"""What YOLO models were trained with around their images."""


def infer(options: Options, types: Types) -> tuple[TensorType, ...]:
    shape = need_rank(types, "image", IMAGE_RANK, "images of rank 4")
    image = types["image"]
    if image.layout == "NCHW":
        raise InapplicableError("it comes before layout: NCHW")
    if image.dtype not in {None, "uint8", "float32"}:
        raise InapplicableError(f"it resizes uint8 and float32 images and gets {image.dtype}; cast before")
    made = (ROWS, *options["size"], shape[3]) if shape else None
    return TensorType(image.dtype, made, "NHWC"), TensorType("float32", (ROWS, 3))


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every image
    height, width = options["size"]
    value = options.get("value", _GREY)

    def fit(image: Array) -> tuple[Array, Array]:
        factor = min(height / image.shape[0], width / image.shape[1])
        inner = [
            max(1, min(side, round(have * factor))) for side, have in zip((height, width), image.shape, strict=False)
        ]
        same = inner == list(image.shape[:2])
        scaled = image if same else resize.build({"resize": inner}, TensorType())(image[np.newaxis])[0][0]
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        made = np.full((height, width, image.shape[2]), value, dtype=image.dtype)
        made[top : top + inner[0], left : left + inner[1]] = scaled
        return made, np.array([factor, left, top], dtype=np.float32)

    return by_row(fit, 2, "image")
