"""`paste_masks` — masks of a network in the picture, of each box or of the whole, where they are above a value.

With `boxes`, in pixels of the picture, a mask lies over its box, as Mask R-CNN gives it. Without, each lies over the
whole picture, or over the letterboxed image: DETR, SAM. `how` is of `letterbox`, whose image may be larger than the map
by `size`; or the height and width of a picture that fills the map. Values are mixed of the nearest four.
Masks are bool [n, height, width]. The second result is one picture, uint8 [height, width]: the number of the first mask
at each pixel, from 1 on, or 0.

Source: paste_masks_in_image of torchvision, whose boxes grow by one pixel of the mask; interpolate of PyTorch.
"""

import numpy as np
from msgspec.structs import replace

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.operations.resizing import (
    HOW,
    SIZE,
    TYPES,
    hold_size,
    numbered,
    picture_size,
    resized,
    taps,
    taps_of_picture,
)
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    COORDINATES,
    OPTIONAL,
    PIXELS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    SizeConstraint,
    Solved,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options, computable

_FAR = 2**31


def _hold(solved: Solved, types: Types) -> None:
    hold_size(solved, types)
    if "size" in solved.options and "boxes" in types:
        raise ContractError("size is that of the image under the masks, which lie over boxes")


CONTRACT = Contract(
    name="paste_masks",
    meaning="Masks of boxes, or of the whole picture, in the pixels of the picture",
    inputs=(
        FormalParameter(
            "masks",
            "T",
            forms("rows n mask_height mask_width", "rows n 1 mask_height mask_width"),
            "values",
            finite=True,
        ),
        FormalParameter(
            "boxes", "B", forms("rows n 4"), "left, top, right, bottom", units=(PIXELS,), option=OPTIONAL, finite=True
        ),
        HOW,
    ),
    outputs=(
        FormalParameter("masks", "bool", forms("rows n height width"), "where they are above the value"),
        FormalParameter("map", "uint8", forms("rows height width"), "the number of the first mask, from 1; 0: none"),
    ),
    attributes=(Attribute("above", "FLOAT", "the value that masks are above", default=0.5), SIZE),
    types=(*TYPES, replace(COORDINATES, name="B")),
    sizes=(SizeConstraint("mask_height", least=1), SizeConstraint("mask_width", least=1)),
    arithmetic=_hold,
)


def build(options: Options, types: Types) -> Call:
    above = options["above"]

    def in_boxes(masks: Array, boxes: Array, how: Array) -> tuple[Array, Array]:
        height, width = picture_size(how)
        found = np.zeros((len(masks), height, width), bool)
        for mask, one, box in zip(found, _flat(masks), convert(boxes, "float64"), strict=True):
            framed = np.pad(one, 1)
            middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
            half *= np.array(framed.shape[::-1]) / one.shape[::-1]
            corners = np.concatenate([middle - half, middle + half]).clip(-_FAR, _FAR)
            left, top, right, bottom = map(int, corners)
            x, y = (max(left, 0), min(right + 1, width)), (max(top, 0), min(bottom + 1, height))
            if x[0] >= x[1] or y[0] >= y[1]:
                continue
            down = taps(y[0] - top, y[1] - top, bottom + 1 - top, framed.shape[0])
            across = taps(x[0] - left, x[1] - left, right + 1 - left, framed.shape[1])
            mask[slice(*y), slice(*x)] = resized(framed, down, across) > above
        return found, numbered(found)

    def whole(masks: Array, how: Array) -> tuple[Array, Array]:
        height, width = picture_size(how)
        found = np.zeros((len(masks), height, width), bool)
        around = taps_of_picture(how, masks.shape[-2:], options)
        for mask, one in zip(found, _flat(masks), strict=True):
            mask[:] = resized(one, *around) > above
        return found, numbered(found)

    if "boxes" in types:
        return by_row(in_boxes, 2, "masks", "boxes", "how")
    return by_row(whole, 2, "masks", "how")


def _flat(masks: Array) -> Array:
    """Return masks [n, height, width] of those that may have a channel."""
    return computable(masks).reshape(len(masks), *masks.shape[-2:])
