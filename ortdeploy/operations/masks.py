"""`masks` — the masks of things in a picture, from factors of each thing and the maps that all of them share.

A mask is where the sum of the maps `protos` times the `factors` of a thing is above 0, inside of its box. `boxes` are
in pixels of the picture, as `unletterbox` gives them, and masks have the picture's size: bool [n, height, width]. The
second result is one picture, uint8 [height, width]: the number of the first mask at each pixel, from 1 on, or 0.

Source: process_mask_native of ultralytics, which retina_masks chooses.
"""

import math

import numpy as np
from msgspec.structs import replace

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.operations.resizing import numbered, resized, taps
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    COORDINATES,
    FIT,
    PIXELS,
    REALS,
    Contract,
    FormalParameter,
    SizeConstraint,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options, computable

_OF_IMAGE = 4
"""The pixels of the network's image that make one of the maps, along each side."""
_ROUNDED = 0.1
"""What ultralytics moves a border by before it rounds it, so that halves go outwards."""

CONTRACT = Contract(
    name="masks",
    meaning="Masks of things in a picture, from factors of each and maps that all share",
    inputs=(
        FormalParameter("factors", "T", forms("rows n maps"), "the factors of each thing", finite=True),
        FormalParameter(
            "protos", "P", forms("rows maps map_height map_width"), "the maps, over the letterboxed image", finite=True
        ),
        FormalParameter(
            "boxes",
            "B",
            forms("rows n 4"),
            "left, top, right, bottom in the image before letterbox",
            units=(PIXELS,),
            not_nan=True,
        ),
        FormalParameter("how", "H", forms("rows 6"), "what letterbox gives", units=(FIT,), finite=True),
    ),
    outputs=(
        FormalParameter("masks", "bool", forms("rows n height width"), "the masks, in the image before letterbox"),
        FormalParameter("map", "uint8", forms("rows height width"), "the number of the first mask, from 1; 0: none"),
    ),
    types=(REALS, replace(REALS, name="P"), COORDINATES, replace(REALS, name="H")),
    sizes=(SizeConstraint("map_height", least=1), SizeConstraint("map_width", least=1)),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def mark(factors: Array, protos: Array, boxes: Array, how: Array) -> tuple[Array, Array]:
        height, width = (max(int(side), 1) for side in how[4:])
        finer, down, across = _inside(protos.shape[1:], (height, width), centered=bool(how[2:4].any()))
        sums = np.tensordot(computable(factors), computable(protos), 1)
        masks = np.zeros((len(factors), height, width), bool)
        corners = np.ceil(convert(boxes, "float64")).clip(0, [width, height, width, height]).astype(int)
        for mask, one, (left, top, right, bottom) in zip(masks, sums, corners, strict=True):
            if finer > 1:
                one = resized(one, *(taps(0, finer * side, finer * side, side) for side in one.shape))  # noqa: PLW2901
            kept = one[down, across]
            rows, columns = taps(top, bottom, height, kept.shape[0]), taps(left, right, width, kept.shape[1])
            mask[top:bottom, left:right] = resized(kept, rows, columns) > 0
        return masks, numbered(masks)

    return by_row(mark, 2, "factors", "protos", "boxes", "how")


def _inside(maps: tuple[int, ...], image: tuple[int, int], *, centered: bool) -> tuple[int, slice, slice]:
    """Return how much finer maps are made, and the rows and columns of those that the image covers.

    Maps are made as fine as needed to cut them between pixels, at most as fine as the network's image.
    """
    gain = min(_OF_IMAGE * one / side for one, side in zip(maps, image, strict=True))
    beside = [_OF_IMAGE * one - max(round(side * gain), 1) for one, side in zip(maps, image, strict=True)]
    odd = beside[0] | beside[1]
    finer = _OF_IMAGE // math.gcd(_OF_IMAGE, odd | odd // 2)

    def covered(size: int, side: int) -> slice:
        within = max(round(side * gain * finer / _OF_IMAGE), 1)
        before = round((size * finer - within) / 2 - _ROUNDED) if centered else 0
        return slice(before, before + within)

    return finer, covered(maps[0], image[0]), covered(maps[1], image[1])
