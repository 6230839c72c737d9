"""`rgb: true` — three channels in the order red, green, blue; a grey image gets three equal channels."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import ANY, IMAGE, Contract, FormalParameter, SizeConstraint, forms
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, image_axes

CONTRACT = Contract(
    name="rgb",
    meaning="Three channels in the order red, green, blue; grey gets three equal ones",
    inputs=(FormalParameter("x", "T", IMAGE, "images of 1 or 3 channels"),),
    outputs=(
        FormalParameter(
            "image",
            "T",
            forms("NHWC rows height width 3", "NCHW rows 3 height width"),
            "images of three channels",
            keeps=("layout", "unit"),
        ),
    ),
    types=(ANY,),
    sizes=(SizeConstraint("channels", sizes=(1, 3)),),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    axis = image_axes(tensor)[2]

    def apply(array: Array) -> tuple[Array, ...]:
        return (np.repeat(array, 3, axis=axis) if array.shape[axis] == 1 else array,)

    return apply
