"""`pad: [HEIGHT, WIDTH]` — at least that size, the image in the middle; a larger one stays as it is."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    IMAGE,
    NUMBERS,
    Attribute,
    Contract,
    FormalParameter,
    Solved,
    Types,
    forms,
    image_size,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, image_axes


def _grow(solved: Solved, types: Types) -> None:  # noqa: ARG001  the sizes are solved
    """Take the larger of the image's size and the wanted one."""
    for name, wanted in zip(("height", "width"), solved.options["pad"], strict=True):
        have = solved.size(name)
        solved.sizes[f"padded_{name}"] = None if have is None else max(have, wanted)


CONTRACT = Contract(
    name="pad",
    meaning="At least that size, the image in the middle; a larger one stays as it is",
    inputs=(FormalParameter("x", "T", IMAGE, "images"),),
    outputs=(
        FormalParameter(
            "image",
            "T",
            forms("NHWC rows padded_height padded_width channels", "NCHW rows channels padded_height padded_width"),
            "images of at least one size",
            keeps=("layout", "unit"),
        ),
    ),
    attributes=(
        image_size("pad"),
        Attribute("value", "FLOAT", "what the sides are filled with", default=0),
    ),
    types=(NUMBERS,),
    arithmetic=_grow,
)


def build(options: Options, tensor: TensorType) -> Apply:
    axes = image_axes(tensor)[:2]

    def apply(array: Array) -> tuple[Array, ...]:
        widths = [(0, 0)] * array.ndim
        for axis, size in zip(axes, options["pad"], strict=True):
            missing = max(size - array.shape[axis], 0)
            widths[axis] = (missing // 2, missing - missing // 2)
        return (np.pad(array, widths, constant_values=options["value"]),)

    return apply
