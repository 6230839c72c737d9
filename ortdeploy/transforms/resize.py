"""`resize: [HEIGHT, WIDTH]` — as Pillow resizes, with its antialiasing; method nearest, bilinear, bicubic, lanczos."""

from collections.abc import Callable

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
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
from ortdeploy.transforms.protocol import Apply, Options

METHODS = ("nearest", "bilinear", "bicubic", "lanczos")

CONTRACT = Contract(
    name="resize",
    meaning="To [height, width], as Pillow does it",
    inputs=(FormalParameter("x", "T", forms("NHWC rows height width channels"), "images"),),
    outputs=(
        FormalParameter(
            "image",
            "T",
            forms("NHWC rows new_height new_width channels"),
            "images of one size",
            keeps=("layout", "unit"),
        ),
    ),
    attributes=(
        image_size("resize", binds=("new_height", "new_width")),
        Attribute("method", "STRING", "how pixels are mixed", default="bilinear", choices=METHODS),
    ),
    types=(PICTURES,),
    sizes=(*IMAGE_SIZES, SizeConstraint("channels", least=1)),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    from PIL import Image  # noqa: PLC0415  an extra: only who resizes needs it

    height, width = options["resize"]
    method = Image.Resampling[options["method"].upper()]

    def resize_plane(plane: Array) -> Array:
        return np.asarray(Image.fromarray(plane).resize((width, height), method))

    return lambda batch: (np.stack([_resize_image(image, resize_plane) for image in batch]),)


def _resize_image(image: Array, resize_plane: Callable[[Array], Array]) -> Array:
    """Resize one HWC image; three uint8 channels go at once, anything else plane by plane."""
    if image.shape[2] == 3 and image.dtype == np.uint8:  # noqa: PLR2004  RGB
        return resize_plane(np.ascontiguousarray(image))
    planes = [resize_plane(np.ascontiguousarray(image[:, :, channel])) for channel in range(image.shape[2])]
    return np.stack(planes, axis=2)
