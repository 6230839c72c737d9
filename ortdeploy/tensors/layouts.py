"""Tells whether an array that does not fit would fit in the other layout of images."""

from ortdeploy.tensors.types import Shape, TensorType, dimensions_agree

_ORDERS = {"NCHW": (2, 0, 1), "NHWC": (1, 2, 0)}
"""By layout, the axes of a row in the other layout, in the order in which they become its own."""

_CHANNELS = {"NCHW": 0, "NHWC": 2}
_RANK_OF_ROW = 3
_MOST_CHANNELS = 4
"""Of a picture that was read."""


def first_misfit(row: Shape, want: Shape, layout: str | None) -> int | None:
    """Return the first axis of a row whose size is not the one that is wanted; the channels of a picture are few."""
    channels = _CHANNELS.get(layout or "")
    for axis, (have, size) in enumerate(zip(row, want, strict=True)):
        is_channels = axis == channels and have is None
        if not dimensions_agree(have, size) or (is_channels and isinstance(size, int) and size > _MOST_CHANNELS):
            return axis
    return None


def fitting_layout(have: TensorType, want: Shape, taken: str | None = None) -> str | None:
    """Return the layout in which a row [rows, …] would have the sizes of `want`, which it has not as it is.

    Where it is known which one is `taken`, no other one is returned.
    """
    row = (have.shape or ())[1:]
    if len(row) != len(want) or len(row) != _RANK_OF_ROW:
        return None
    others = [layout for layout in _ORDERS if layout != have.layout and taken in {None, layout}]
    return next((layout for layout in others if _fits(row, want, layout)), None)


def _fits(row: Shape, want: Shape, layout: str) -> bool:
    return first_misfit(tuple(row[axis] for axis in _ORDERS[layout]), want, layout) is None


def layout_step(have: TensorType, layout: str) -> str:
    """Return the settings of a layout step: where a layout is not known, with the one to start from."""
    other = next(name for name in _ORDERS if name != layout)
    return f"layout: {layout}" + ("" if have.layout else f", from: {other}")
