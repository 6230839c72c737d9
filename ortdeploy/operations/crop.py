"""`crop` — the pictures inside of boxes: of the boxes' own sizes, or all resized to one `size: [height, width]`.

A box's edges are rounded outwards and kept inside of the image. A box without area gives no picture: its row fails.
"""

from functools import partial
from typing import Any

import numpy as np

from ortdeploy.operations.protocol import Call, as_column, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    COORDINATES,
    IMAGE,
    IMAGE_SIZES,
    NUMBERS,
    PIXELS,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    Types,
    forms,
    image_size,
)
from ortdeploy.transforms.protocol import Options
from ortdeploy.transforms.sampling import sampler

PACKAGE = None


def _hold_layout(solved: Solved, types: Types) -> None:  # noqa: ARG001  the layout is solved
    """Refuse to resize planes: pictures are resized in NHWC. Raises ContractError."""
    if "size" in solved.options and solved.layout == "NCHW":
        raise ContractError("it resizes images in NHWC and gets NCHW; crop without size, or change the layout after")


CONTRACT = Contract(
    name="crop",
    meaning="The pictures inside of boxes, of any sizes, or all of one size",
    inputs=(
        FormalParameter("image", "T", IMAGE, "images"),
        FormalParameter(
            "boxes", "B", forms("rows n 4"), "left, top, right, bottom in pixels", units=(PIXELS,), finite=True
        ),
    ),
    outputs=(
        FormalParameter(
            "pictures",
            "T",
            forms("NHWC rows n new_height new_width channels", "NCHW rows n channels new_height new_width"),
            "a list of pictures a row",
            keeps=("layout", "unit"),
        ),
    ),
    attributes=(image_size("size", required=False, binds=("new_height", "new_width")),),
    types=(NUMBERS, COORDINATES),
    sizes=IMAGE_SIZES,
    arithmetic=_hold_layout,
)


def build(options: Options, types: Types) -> Call:
    size = options.get("size")
    shrink = sampler({}) if size else None
    axes = (1, 2) if types["image"].layout == "NCHW" else (0, 1)

    def crops(image: Array, boxes: Any) -> tuple[Any]:
        pictures = [_cut(image, box, axes) for box in np.asarray(boxes, dtype=np.float64)]
        if shrink is not None and size:
            pictures = [shrink(picture, size[0], size[1]) for picture in pictures]
        column = as_column(pictures)
        return (column if pictures else _none_of(image, size),)

    return by_row(partial(crops), 1, "image", "boxes")


def _none_of(image: Array, size: list[int] | None) -> Array:
    """Return no pictures, as an array of the image's type."""
    sides = tuple(size) + image.shape[2:] if size else image.shape
    return np.zeros((0, *sides), dtype=image.dtype)


def _cut(image: Array, box: Array, axes: tuple[int, int]) -> Array:
    """Return a picture. Raises ValueError for a box that has no area inside of the image."""
    height, width = image.shape[axes[0]], image.shape[axes[1]]
    left, top = np.floor(box[:2]).clip(0, [width, height]).astype(int)
    right, bottom = np.ceil(box[2:]).clip(0, [width, height]).astype(int)
    if right <= left or bottom <= top:
        raise ValueError(f"the box {box.tolist()} has no area inside of an image of {width} x {height} pixels")
    place = [slice(None)] * image.ndim
    place[axes[0]], place[axes[1]] = slice(top, bottom), slice(left, right)
    return image[tuple(place)]
