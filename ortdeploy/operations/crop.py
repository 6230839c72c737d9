"""`crop` — cuts the pictures inside of boxes out of an image: each in its own size, or all resized to `size`.

Boxes are [n, 4] in pixels: left, top, right, bottom. Their edges are rounded outwards and kept inside of the image.
Boxes can also be corners [n, 4, 2], as `text_boxes` gives them. Then the picture between the corners is set upright
with OpenCV's bicubic weights, and turned by a quarter if it is at least 1.5 times as high as wide, as RapidOCR does.

`size` is [height, width]. A row fails if one of its boxes has no area.
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
    PICTURES,
    PIXELS,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    Types,
    forms,
    image_size,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options, computable, rounded
from ortdeploy.transforms.sampling import cubic_weights, sampler

_BOXES = 2
"""The rank of a row's boxes; that of corners is one more."""
_HIGH = 1.5
"""From this ratio of height to width, a picture is a line that runs downwards."""


def _hold_layout(solved: Solved, types: Types) -> None:
    """Refuse to resize pictures that are not NHWC, or that Pillow does not have. Raises ContractError."""
    dtype = types["image"].dtype
    if "size" in solved.options and dtype is not None and dtype not in PICTURES.types:
        raise ContractError(f"with size, it takes {PICTURES.called} and gets {dtype}; {PICTURES.advice}")
    if "size" in solved.options and solved.layout == "NCHW":
        raise ContractError("it resizes images in NHWC and gets NCHW; crop without size, or change the layout after")


CONTRACT = Contract(
    name="crop",
    meaning="The pictures inside of boxes, of any sizes, or all of one size",
    inputs=(
        FormalParameter("image", "T", IMAGE, "images"),
        FormalParameter(
            "boxes",
            "B",
            forms("rows n 4", "rows n 4 2"),
            "left, top, right, bottom, or four corners clockwise from left top",
            units=(PIXELS,),
            finite=True,
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
        boxes = convert(np.asarray(boxes), "float64")
        take = _cut if boxes.ndim == _BOXES else _set_upright
        pictures = [take(image, box, axes) for box in boxes]
        if shrink is not None and size:
            pictures = [shrink(picture, size[0], size[1]) for picture in pictures]
        column = as_column(pictures)
        return (column if pictures else _none_of(image, size),)

    return by_row(partial(crops), 1, "image", "boxes")


def _none_of(image: Array, size: list[int] | None) -> Array:
    """Return an array of no pictures, with the element type and layout of the image."""
    sides = tuple(size) + image.shape[2:] if size else image.shape
    return np.zeros((0, *sides), dtype=image.dtype)


def _cut(image: Array, box: Array, axes: tuple[int, int]) -> Array:
    """Return the picture inside of a box [4]. Raises ValueError for a box without area inside of the image."""
    height, width = image.shape[axes[0]], image.shape[axes[1]]
    left, top = np.floor(box[:2]).clip(0, [width, height]).astype(int)
    right, bottom = np.ceil(box[2:]).clip(0, [width, height]).astype(int)
    if right <= left or bottom <= top:
        raise ValueError(f"the box {box.tolist()} has no area inside of an image of {width} x {height} pixels")
    place = [slice(None)] * image.ndim
    place[axes[0]], place[axes[1]] = slice(top, bottom), slice(left, right)
    return image[tuple(place)]


def _set_upright(image: Array, corners: Array, axes: tuple[int, int]) -> Array:
    """Return the picture between four corners [4, 2]. Raises ValueError if they have no area."""
    width, height = (
        int(max(np.linalg.norm(corners[a] - corners[b]), np.linalg.norm(corners[c] - corners[d])))
        for a, b, c, d in ((0, 1, 2, 3), (0, 3, 1, 2))
    )
    if width < 1 or height < 1:
        raise ValueError(f"the box {corners.tolist()} has no area")
    pixels = np.moveaxis(image, axes, (0, 1))
    y, x = np.mgrid[:height, :width]
    targets = np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
    across, down, depth = _projection(corners, width, height) @ targets
    made = _sampled(pixels, across / depth, down / depth).reshape(height, width, -1)
    if height / width >= _HIGH:
        made = np.rot90(made)
    return np.ascontiguousarray(np.moveaxis(made, (0, 1), axes))


def _projection(corners: Array, width: int, height: int) -> Array:
    """Return the matrix [3, 3] that maps a picture onto its corners in the image. Raises ValueError without one."""
    upright = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    lines = []
    for (x, y), (to_x, to_y) in zip(upright, corners, strict=True):
        lines += [[x, y, 1, 0, 0, 0, -x * to_x, -y * to_x], [0, 0, 0, x, y, 1, -x * to_y, -y * to_y]]
    try:
        return np.append(np.linalg.solve(lines, corners.ravel()), 1).reshape(3, 3)
    except np.linalg.LinAlgError as error:
        raise ValueError(f"the box {corners.tolist()} has no area") from error


def _sampled(pixels: Array, x: Array, y: Array) -> Array:
    """Return the values [places, channels] of an image [height, width, channels] at places x [places], y [places].

    Beyond an edge, the image has the values of that edge.
    """
    parts = []
    for place, size in ((x, pixels.shape[1]), (y, pixels.shape[0])):
        near = place.clip(-size, 2 * size)
        first = np.floor(near)
        parts.append((convert(first, "int64"), size, cubic_weights((near - first).astype(np.float32))))
    (left, width, across), (top, height, down) = parts
    values = computable(pixels)
    made = np.zeros((x.size, pixels.shape[2]), values.dtype)
    for row in range(4):
        from_row = (top + row - 1).clip(0, height - 1)
        for column in range(4):
            share = (down[:, row] * across[:, column])[:, np.newaxis]
            made += values[from_row, (left + column - 1).clip(0, width - 1)] * share
    return rounded(made, pixels)
