"""`center_crop: [HEIGHT, WIDTH]` — cuts the middle out of each image; a smaller image is an error.

If an odd number of pixels is cut off, the middle lies half a pixel from its place. transformers (ImageProcessingMixin)
begins half a pixel earlier. With `like: torchvision`, Python's round decides, as in its functional.center_crop: every
other odd difference begins half a pixel later.
"""

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    ANY,
    IMAGE,
    Attribute,
    Contract,
    FormalParameter,
    SizeConstraint,
    forms,
    image_size,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, image_axes

TRANSFORMERS, TORCHVISION = "transformers", "torchvision"

CONTRACT = Contract(
    name="center_crop",
    meaning="The middle of each image; a smaller image fails its row",
    inputs=(FormalParameter("x", "T", IMAGE, "images"),),
    outputs=(
        FormalParameter(
            "image",
            "T",
            forms("NHWC rows cut_height cut_width channels", "NCHW rows channels cut_height cut_width"),
            "images of one size",
            keeps=("layout", "unit"),
        ),
    ),
    attributes=(
        image_size("center_crop", binds=("cut_height", "cut_width")),
        Attribute(
            "like",
            "STRING",
            "whose middle it is, where it lies between two pixels",
            default=TRANSFORMERS,
            choices=(TRANSFORMERS, TORCHVISION),
        ),
    ),
    types=(ANY,),
    sizes=(SizeConstraint("height", least="cut_height"), SizeConstraint("width", least="cut_width")),
)


def build(options: Options, tensor: TensorType) -> Apply:
    axes, by_round = image_axes(tensor)[:2], options["like"] == TORCHVISION

    def apply(array: Array) -> tuple[Array, ...]:
        cut = [slice(None)] * array.ndim
        for axis, size in zip(axes, options["center_crop"], strict=True):
            rest = array.shape[axis] - size
            start = round(rest / 2) if by_round else rest // 2
            cut[axis] = slice(start, start + size)
        return (array[tuple(cut)],)

    return apply
