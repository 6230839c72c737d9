"""`boxes` — converts boxes between notations (`from`, `to`) and between units (`unit`, `to_unit`).

Boxes are [rows, n, 4]. The notations are `xyxy`: left, top, right, bottom; `yxyx`: top, left, bottom, right; `xywh`:
left, top, width, height; `cxcywh`: center x, center y, width, height. A change of unit needs the height and width of
the image in pixels: `size` is one for all rows, `sizes` [rows, 2] has one for each row.
"""

from collections.abc import Callable

import numpy as np

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    COORDINATES,
    NORMALISED,
    NUMBERS,
    OPTIONAL,
    PIXELS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    forms,
    image_size,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options

_WAYS = ("xyxy", "yxyx", "xywh", "cxcywh")
_UNITS = (PIXELS, NORMALISED)


def _hold_units(solved: Solved, types: Types) -> None:
    """Check the units and sizes against the boxes that come in. Raises ContractError."""
    options = solved.options
    unit, have = options.get("unit", PIXELS), types["boxes"].unit
    if have is not None and have != unit:
        raise ContractError(f"unit is {unit}, and the boxes that it gets are {have}")
    wanted, known = options.get("to_unit", unit), [name for name in ("size", "sizes") if name in {*options, *types}]
    if len(known) != (unit != wanted):
        needs = "either size or sizes, the image's height and width" if unit != wanted else "neither size nor sizes"
        raise ContractError(f"to go from {unit} to {wanted} it takes {needs}, and gets {' and '.join(known) or 'none'}")
    solved.units["boxes"] = wanted


CONTRACT = Contract(
    name="boxes",
    meaning="Boxes written in another way, or in pixels instead of from 0 to 1 and back",
    inputs=(
        FormalParameter("boxes", "B", forms("rows n 4"), "boxes as `from` says, in `unit`"),
        FormalParameter("sizes", "T", forms("rows 2"), "height, width of each image", option=OPTIONAL, finite=True),
    ),
    outputs=(FormalParameter("boxes", "float32", forms("rows n 4"), "boxes as `to` says, in `to_unit`"),),
    attributes=(
        Attribute("from", "STRING", "how the boxes are written", required=True, choices=_WAYS),
        Attribute("to", "STRING", "how they are to be written", default="xyxy", choices=_WAYS),
        Attribute("unit", "STRING", "what their numbers count", default=PIXELS, choices=_UNITS),
        Attribute("to_unit", "STRING", "what they are to count; if it is left out, the same", choices=_UNITS),
        image_size("size", required=False),
    ),
    types=(COORDINATES, NUMBERS),
    arithmetic=_hold_units,
)


def build(options: Options, types: Types) -> Call:
    read, write = _READ[options["from"]], _WRITE[options["to"]]
    unit = options["unit"]
    changes, to_pixels = options.get("to_unit", unit) != unit, unit == NORMALISED
    fixed = np.asarray(options.get("size", [1, 1]), np.float64)

    def change(boxes: Array, size: Array = fixed) -> tuple[Array]:
        corners = read(convert(boxes, "float64"))
        if changes:
            scale = convert(size, "float64")[[1, 0, 1, 0]]
            if not (scale > 0).all():
                raise ValueError(f"an image of {size[0]} x {size[1]} has no size to measure boxes by")
            corners = corners * scale if to_pixels else corners / scale
        return (convert(write(corners), "float32"),)

    return by_row(change, 1, "boxes", *(["sizes"] if "sizes" in types else []))


Way = Callable[[Array], Array]
"""From boxes [n, 4] to boxes [n, 4]."""


def _from_xywh(boxes: Array) -> Array:
    """Convert boxes [n, 4] from left, top, width, height to left, top, right, bottom."""
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def _to_xywh(boxes: Array) -> Array:
    """Convert boxes [n, 4] from left, top, right, bottom to left, top, width, height."""
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def from_cxcywh(boxes: Array) -> Array:
    """Convert boxes [n, 4] from center x, center y, width, height to left, top, right, bottom."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def _to_cxcywh(boxes: Array) -> Array:
    """Convert boxes [n, 4] from left, top, right, bottom to center x, center y, width, height."""
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)


def _same(boxes: Array) -> Array:
    """Return boxes [n, 4] as they are."""
    return boxes


def _crossed(boxes: Array) -> Array:
    """Convert boxes [n, 4] from left, top, right, bottom to top, left, bottom, right, or back."""
    return boxes[:, [1, 0, 3, 2]]


_READ: dict[str, Way] = {"xyxy": _same, "yxyx": _crossed, "xywh": _from_xywh, "cxcywh": from_cxcywh}
_WRITE: dict[str, Way] = {"xyxy": _same, "yxyx": _crossed, "xywh": _to_xywh, "cxcywh": _to_cxcywh}
