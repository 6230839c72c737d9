"""`crop` — the pictures inside of boxes: of the boxes' own sizes, or all resized to one `size: [height, width]`.

A box's edges are rounded outwards and kept inside of the image. A box without area gives no picture: its row fails.
"""

from functools import partial
from typing import Any

import numpy as np

from ortdeploy.operations.protocol import IMAGE_RANK, Array, Call, Types, as_column, by_row, need_rank
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms import resize
from ortdeploy.transforms.protocol import Options

PACKAGE = None
TAKES: Types = {}


def infer(options: Options, types: Types) -> tuple[TensorType, ...]:
    shape = need_rank(types, "image", IMAGE_RANK, "images of rank 4")
    boxes = need_rank(types, "boxes", 3, "boxes [rows, n, 4]")
    if boxes is not None and boxes[2] not in {4, None}:
        raise InapplicableError(f"boxes must be [rows, n, 4] and are {types['boxes']}")
    size = options.get("size")
    if size and types["image"].layout == "NCHW":
        raise InapplicableError(
            "it resizes images in NHWC and gets NCHW; crop without size, or change the layout after"
        )
    sides = tuple(size) if size else (None, None)
    if shape is None:
        return (TensorType(types["image"].dtype, None, types["image"].layout),)
    row = (shape[1], *sides) if types["image"].layout == "NCHW" else (*sides, shape[3])
    return (TensorType(types["image"].dtype, (ROWS, None, *row), types["image"].layout),)


def build(options: Options, types: Types) -> Call:
    size = options.get("size")
    shrink = resize.build({"resize": size}, TensorType()) if size else None
    axes = (1, 2) if types["image"].layout == "NCHW" else (0, 1)

    def crops(image: Array, boxes: Any) -> tuple[Any]:
        pictures = [_cut(image, box, axes) for box in np.asarray(boxes, dtype=np.float64).reshape(-1, 4)]
        if shrink is not None:
            pictures = [shrink(picture[np.newaxis])[0][0] for picture in pictures]
        column = as_column(pictures)
        return (column if pictures else _none_of(image, size),)

    return by_row(partial(crops), 1, "image", "boxes")


def _none_of(image: Array, size: list[int] | None) -> Array:
    """Return no pictures, as an array of the image's type."""
    sides = tuple(size) + image.shape[2:] if size else image.shape
    return np.zeros((0, *sides), dtype=image.dtype)


def _cut(image: Array, box: Array, axes: tuple[int, int]) -> Array:
    """Return a picture. Raises ValueError for a box that has no area inside of the image, or is not a number."""
    height, width = image.shape[axes[0]], image.shape[axes[1]]
    if not np.isfinite(box).all():
        raise ValueError(f"a box is {box.tolist()}")
    left, top = np.floor(box[:2]).clip(0, [width, height]).astype(int)
    right, bottom = np.ceil(box[2:]).clip(0, [width, height]).astype(int)
    if right <= left or bottom <= top:
        raise ValueError(f"the box {box.tolist()} has no area inside of an image of {width} x {height} pixels")
    place = [slice(None)] * image.ndim
    place[axes[0]], place[axes[1]] = slice(top, bottom), slice(left, right)
    return image[tuple(place)]
