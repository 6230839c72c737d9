"""`pad: [HEIGHT, WIDTH]`, or `pad: {multiple: 32}` — at least that size; a larger image stays as it is.

The image stands in the middle, or with `place: top_left` is filled up right and below.
"""

from collections.abc import Mapping

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
from ortdeploy.transforms.fitting import PLACE, padded
from ortdeploy.transforms.protocol import Apply, Options, image_axes


def _grow(solved: Solved, types: Types) -> None:  # noqa: ARG001  the sizes are solved
    """Work out the sizes that are known."""
    wanted = solved.options["pad"]
    for place, name in enumerate(("height", "width")):
        have = solved.size(name)
        solved.sizes[f"padded_{name}"] = None if have is None else _at_least(wanted, place, have)


def _at_least(wanted: Mapping[str, int] | list[int], place: int, have: int) -> int:
    """Return the size of a side, which is that of the image where that is larger."""
    if isinstance(wanted, Mapping):
        return -(-have // wanted["multiple"]) * wanted["multiple"]
    return max(have, wanted[place])


CONTRACT = Contract(
    name="pad",
    meaning="At least that size, or a multiple of one; a larger image stays as it is",
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
        Attribute("pad.multiple", "INT", "what each side is to be a multiple of", least=1, most=65536),
        PLACE,
        Attribute("value", "FLOAT", "what the sides are filled with", default=0),
    ),
    types=(NUMBERS,),
    arithmetic=_grow,
)


def build(options: Options, tensor: TensorType) -> Apply:
    axes = image_axes(tensor)[:2]

    def apply(array: Array) -> tuple[Array, ...]:
        height, width = (_at_least(options["pad"], place, array.shape[axis]) for place, axis in enumerate(axes))
        return (padded(array, axes, (height, width), options["place"], options["value"]),)

    return apply
