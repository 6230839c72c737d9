"""`grayscale: true` — one channel, by ITU-R 601 luma; uint8 images equal Pillow's convert("L") bit for bit."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import IMAGE, NUMBERS, Contract, FormalParameter, SizeConstraint, forms
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, computable, image_axes, rounded

CONTRACT = Contract(
    name="grayscale",
    meaning="One channel, by ITU-R 601 luma as Pillow computes it",
    inputs=(FormalParameter("x", "T", IMAGE, "images of 1 or 3 channels"),),
    outputs=(
        FormalParameter(
            "image",
            "T",
            forms("NHWC rows height width 1", "NCHW rows 1 height width"),
            "grey images",
            keeps=("layout", "unit"),
        ),
    ),
    types=(NUMBERS,),
    sizes=(SizeConstraint("channels", sizes=(1, 3)),),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    axis = image_axes(tensor)[2]

    def apply(array: Array) -> tuple[Array, ...]:
        if array.shape[axis] == 1:
            return (array,)
        return (np.expand_dims(_luma(np.moveaxis(array, axis, -1)), axis),)

    return apply


def _luma(rgb: Array) -> Array:
    red, green, blue = (rgb[..., channel] for channel in range(3))
    if rgb.dtype == np.uint8:  # Pillow's fixed point: L24 of its Convert.c
        wide = red.astype(np.uint32) * 19595 + green.astype(np.uint32) * 38470 + blue.astype(np.uint32) * 7471
        return ((wide + 0x8000) >> 16).astype(np.uint8)
    red, green, blue = (computable(one) for one in (red, green, blue))
    return rounded(red * 0.299 + green * 0.587 + blue * 0.114, rgb)
