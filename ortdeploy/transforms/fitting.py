"""The arithmetic of resize, pad and letterbox: the new size of an image, and its place in a larger one."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import Attribute, ContractError
from ortdeploy.tensors.conversion import convert

_MOST = 65536

PLACE = Attribute(
    "place", "STRING", "where the image stands in what is larger", default="center", choices=("center", "top_left")
)
SIZES = (
    Attribute("resize.shortest", "INT", "the shortest side", least=1, most=_MOST),
    Attribute("resize.longest", "INT", "the longest side, or with shortest its bound", least=1, most=_MOST),
    Attribute("resize.height", "INT", "the height; the width is free", least=1, most=_MOST),
    Attribute("resize.width", "INT", "the width; the height is free", least=1, most=_MOST),
    Attribute("resize.max_width", "INT", "with height: wider images are squeezed", least=1, most=_MOST),
    Attribute(
        "resize.round_up_to",
        "INT",
        "with height: a free width is rounded up to at most this, and down beyond it",
        least=1,
        most=_MOST,
    ),
    Attribute("resize.multiple", "INT", "each side is rounded to a multiple", least=1, most=_MOST),
    Attribute(
        "resize.round", "STRING", "how sides become whole, and multiples; else as described", choices=("up", "nearest")
    ),
    Attribute("resize.only", "STRING", "with shortest or longest: others stay", choices=("grow", "shrink")),
)
"""The keys that `resize` takes instead of [height, width]."""

_TOGETHER = ({"shortest", "longest"}, {"height", "max_width", "round_up_to"}, {"width"}, set[str]())
_MAPPING = (
    "resize takes [height, width], or shortest, longest, both, height (and max_width, round_up_to), width or multiple"
)


def hold_sizes(sizes: Mapping[str, Any]) -> None:
    """Refuse settings of `resize` that contradict each other. Raises ContractError."""
    sides = set(sizes) - {"multiple", "only", "round"}
    needs_height = bool(sides & {"max_width", "round_up_to"})
    if not any(sides <= together for together in _TOGETHER) or (needs_height and "height" not in sides):
        raise ContractError(f"{_MAPPING}, and gets {', '.join(sizes)}")
    if not sides and "multiple" not in sizes:
        raise ContractError(f"{_MAPPING}, and gets {', '.join(sizes) or 'none'}")
    if "only" in sizes and not sides & {"shortest", "longest"}:
        raise ContractError("only: says which images shortest or longest leave as they are, and there is neither")


_ROUNDINGS: Mapping[str, Callable[[float], int]] = {"up": math.ceil, "nearest": round}


def new_size(sizes: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
    """Return the new height and width of an image, in pixels, each at least 1."""
    made = _in_proportion(sizes, height, width)
    multiple, whole = sizes.get("multiple", 1), _ROUNDINGS.get(sizes.get("round", ""), round)
    new_height, new_width = (max(whole(side / multiple), 1) * multiple for side in made)
    return new_height, new_width


def _in_proportion(sizes: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
    if "height" in sizes:
        free = _free_width(sizes["height"] * (width / height), sizes.get("round_up_to"))
        return sizes["height"], min(free, sizes.get("max_width", free))
    if "width" in sizes:
        return math.ceil(sizes["width"] * (height / width)), sizes["width"]
    if "shortest" in sizes or "longest" in sizes:
        return _by_side(sizes, height, width)
    return height, width


def _free_width(width: float, round_up_to: int | None) -> int:
    """Round a width up to at most `round_up_to`, and a larger width down.

    PaddleOCR does the same: it fills its batches up to at least that width.
    """
    up = math.ceil(width)
    return up if round_up_to is None else min(up, max(round_up_to, int(width)))


def _by_side(sizes: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
    """Return the new height and width when one side gets its size.

    The other is rounded down, as torchvision does, unless `round` says otherwise.
    """
    whole = _ROUNDINGS.get(sizes.get("round", ""), int)
    short, long = sorted((height, width))
    if "shortest" in sizes:
        new_short, new_long = sizes["shortest"], whole(sizes["shortest"] * long / short)
        if "longest" in sizes and new_long > sizes["longest"]:
            new_short, new_long = whole(sizes["longest"] * new_short / new_long), sizes["longest"]
    else:
        new_short, new_long = whole(sizes["longest"] * short / long), sizes["longest"]
    grows = new_long > long or new_short > short
    if sizes.get("only") == ("shrink" if grows else "grow"):
        return height, width
    return (new_short, new_long) if height <= width else (new_long, new_short)


def inside(height: int, width: int, image: Array, *, may_grow: bool) -> tuple[int, int]:
    """Return the largest height and width that an image can have inside of a size in its own proportions.

    `image` is [height, width, …]. Sides are rounded as YOLO does. Without `may_grow`, a small image keeps its size.
    """
    factor = min(height / image.shape[0], width / image.shape[1])
    factor = factor if may_grow else min(factor, 1.0)
    return (
        max(1, min(height, round(image.shape[0] * factor))),
        max(1, min(width, round(image.shape[1] * factor))),
    )


def before(missing: int, place: str) -> int:
    """Return how many of the missing pixels go before the image: above it, or to its left."""
    return missing // 2 if place == "center" else 0


def padded(image: Array, axes: tuple[int, int], sizes: tuple[int, int], place: str, value: float) -> Array:
    """Return images that are filled up to at least `sizes`, height and width, along the two `axes`.

    They may be [height, width, channels], [rows, height, width, channels] or [rows, channels, height, width].
    """
    widths = [(0, 0)] * image.ndim
    for axis, size in zip(axes, sizes, strict=True):
        missing = max(size - image.shape[axis], 0)
        widths[axis] = (before(missing, place), missing - before(missing, place))
    return np.pad(image, widths, constant_values=convert(np.asarray(value), image.dtype.name))
