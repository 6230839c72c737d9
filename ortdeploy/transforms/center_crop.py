"""`center_crop: [HEIGHT, WIDTH]` — cuts the middle out of each image; a smaller image is an error."""

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    ANY,
    IMAGE,
    Contract,
    FormalParameter,
    SizeConstraint,
    forms,
    image_size,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, image_axes

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
    attributes=(image_size("center_crop", binds=("cut_height", "cut_width")),),
    types=(ANY,),
    sizes=(SizeConstraint("height", least="cut_height"), SizeConstraint("width", least="cut_width")),
)


def build(options: Options, tensor: TensorType) -> Apply:
    axes = image_axes(tensor)[:2]

    def apply(array: Array) -> tuple[Array, ...]:
        cut = [slice(None)] * array.ndim
        for axis, size in zip(axes, options["center_crop"], strict=True):
            start = (array.shape[axis] - size) // 2
            cut[axis] = slice(start, start + size)
        return (array[tuple(cut)],)

    return apply
