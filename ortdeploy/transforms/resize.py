"""`resize: [HEIGHT, WIDTH]`, or by one side: `{shortest: 256}`, `{longest: 640}`, `{height: 48}`, `{multiple: 32}`.

Resizes as Pillow does, with its antialiasing, or with `sampling: opencv` as OpenCV does. If an image keeps its
proportions, rows may differ in size.
"""

from collections.abc import Mapping

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    IMAGE_SIZES,
    PICTURES,
    Contract,
    FormalParameter,
    SizeConstraint,
    Solved,
    Types,
    forms,
    image_size,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.fitting import SIZES, hold_sizes, new_size
from ortdeploy.transforms.protocol import Apply, Options
from ortdeploy.transforms.sampling import SAMPLING, hold_method, sampler, scratch_bytes


def _fit(solved: Solved, types: Types) -> None:  # noqa: ARG001  the sizes are solved
    """Compute the new sizes, if those of the image are known. Raises ContractError."""
    hold_method(solved.options)
    sizes = solved.options["resize"]
    if not isinstance(sizes, Mapping):
        return
    hold_sizes(sizes)
    height, width = solved.size("height"), solved.size("width")
    if height and width:
        solved.sizes["new_height"], solved.sizes["new_width"] = new_size(sizes, height, width)
    for side in {"height", "width"} & set(sizes):  # whatever the image is
        solved.sizes[f"new_{side}"] = new_size(sizes, sizes[side], sizes[side])[side == "width"]


CONTRACT = Contract(
    name="resize",
    meaning="To [height, width] or to one side in proportion, as Pillow or OpenCV does it",
    inputs=(FormalParameter("x", "T", forms("NHWC rows height width channels"), "images"),),
    outputs=(
        FormalParameter(
            "image",
            "T",
            forms("NHWC rows new_height new_width channels"),
            "images of the new size",
            keeps=("layout", "unit"),
        ),
    ),
    attributes=(image_size("resize", binds=("new_height", "new_width")), *SIZES, *SAMPLING),
    types=(PICTURES,),
    sizes=(*IMAGE_SIZES, SizeConstraint("channels", least=1)),
    arithmetic=_fit,
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    sample = sampler(options)
    return lambda batch: (np.stack([sample(image, *_size_of(options, image)) for image in batch]),)


def scratch(options: Options, image: Array) -> int:
    """Return the bytes that resizing one image [height, width, channels] takes for a while."""
    return scratch_bytes(options, image, *_size_of(options, image))


def _size_of(options: Options, image: Array) -> tuple[int, int]:
    sizes = options["resize"]
    return new_size(sizes, *image.shape[:2]) if isinstance(sizes, Mapping) else tuple(sizes)
