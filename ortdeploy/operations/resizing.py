"""Maps over a picture at its own pixels: which two old pixels make a new one along each axis, and their mixture."""

import numpy as np
from msgspec.structs import replace

from ortdeploy.operations.protocol import Types
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    COORDINATES,
    FIT,
    REALS,
    ContractError,
    FormalParameter,
    Solved,
    forms,
    image_size,
)
from ortdeploy.transforms.protocol import Options

Taps = tuple[Array, Array, Array]
"""Of new pixels the two old ones that make each, int [new], and the weight of the second, float64 [new]."""

HOW = FormalParameter(
    "how", "H", forms("rows 6", "rows 2"), "what letterbox gives; or height, width", units=(FIT,), finite=True
)
"""The size of a picture, and its place in the letterboxed image; or the size of one that fills the map."""

SIZE = image_size("size", required=False)
"""The letterboxed image over which a map lies; without it, the map has its size."""

TYPES = (REALS, replace(COORDINATES, name="H"))
_OF_SIZE = 2
_LARGEST = 65536
_MOST = 255


def hold_size(solved: Solved, types: Types) -> None:  # noqa: ARG001  settings and forms alone
    """Check that there is a letterboxed image that has the size. Raises ContractError."""
    known = [one.axes[-1] for one in solved.chosen.get("how", ())]
    if "size" in solved.options and known == [_OF_SIZE]:
        raise ContractError("size is that of the letterboxed image, and how is a height and a width alone")


def picture_size(how: Array) -> tuple[int, int]:
    """Return the height and width of a picture by its `how`, float32 [6] or [2]. Raises ValueError if it has none."""
    height, width = (int(side) for side in how[-_OF_SIZE:])
    if not (0 < height <= _LARGEST and 0 < width <= _LARGEST):
        raise ValueError(f"a picture of {height} x {width} pixels has no map")
    return height, width


def taps_of_picture(how: Array, shape: tuple[int, ...], options: Options) -> tuple[Taps, Taps]:
    """Return the taps along the height and the width of a picture of a map [..., height, width] over it.

    Of a letterboxed picture only the pixels of the map count that lie in it.
    """
    size = picture_size(how)
    known = len(how) > _OF_SIZE
    factors, before = (how[[1, 0]], how[[3, 2]]) if known else (None, (0.0, 0.0))
    found = []
    for axis, new in enumerate(size):
        old = shape[axis]
        finer = old / options.get("size", shape)[axis] if known else 1.0
        step = float(factors[axis]) * finer if factors is not None else old / new
        first = float(before[axis]) * finer
        found.append(_placed((np.arange(new) + 0.5) * step + first - 0.5, first, first + new * step - 1, old))
    return found[0], found[1]


def taps(begin: int, end: int, new: int, old: int) -> Taps:
    """Return the taps of the new pixels [begin, end)."""
    return _placed((np.arange(begin, end) + 0.5) * (old / new) - 0.5, 0, old - 1, old)


def _placed(places: Array, least: float, most: float, old: int) -> Taps:
    places = places.clip(least, max(least, most)).clip(0, old - 1)
    first = np.floor(places).astype(int)
    return first, (first + 1).clip(0, old - 1), places - first


def resized(one: Array, rows: Taps, columns: Taps) -> Array:
    """Return maps [..., height, width] at other pixels, mixed of two along each axis."""
    left, right, x = columns
    wide = one[..., left] * (1 - x) + one[..., right] * x
    upper, lower, y = rows
    y = y[:, np.newaxis]
    return np.asarray(wide[..., upper, :] * (1 - y) + wide[..., lower, :] * y)


def numbered(masks: Array) -> Array:
    """Return uint8 [height, width] of masks [n, height, width]: the number of the first one, from 1 on, or 0.

    Raises ValueError if one that uint8 cannot number is the first one somewhere.
    """
    if len(masks) > _MOST and (masks[_MOST:].any(axis=0) & ~masks[:_MOST].any(axis=0)).any():
        what = f"a picture of uint8 numbers {_MOST} masks at most, and these are {len(masks)}"
        raise ValueError(f"{what}; keep fewer, as nms does with max: {_MOST}")
    found = np.zeros(masks.shape[1:], np.uint8)
    for number, mask in reversed(list(enumerate(masks[:_MOST], 1))):
        found[mask] = number
    return found
