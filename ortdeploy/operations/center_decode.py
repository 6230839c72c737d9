"""`center_decode` — boxes and points from maps of centers, as CenterNet and CenterFace give them.

`heat` has the probability that the center of a thing of each class lies in a cell, `sizes` two numbers of each cell,
`shifts` where in its cell the center lies, and `points` further places. A cell counts if its heat is at least `score`
and the largest of the `peak` by `peak` cells around it; with `peak: 1` every cell counts. At most `max` are kept, best
first, of all classes together.

Numbers come as x, y and width, height; with `order: yx`, as y, x and height, width. Sizes count cells; with
`sizes_as: log` they are logarithms. `middle` is added to the center of each cell. Points count cells from the center;
with `points_from: box` they are parts of the box from its left top. A cell is `stride` pixels.

Sources: ctdet_decode of xingyizhou/CenterNet, and Star-Clouds/CenterFace, whose settings are order: yx, sizes_as: log,
middle: 0.5, points_from: box and peak: 1.
"""

import numpy as np
from msgspec.structs import replace

from ortdeploy.operations.protocol import BOXES, Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    INDEX,
    OPTIONAL,
    PIXELS,
    PROBABILITY,
    REALS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options


def _hold_points(solved: Solved, types: Types) -> None:  # noqa: ARG001  the sizes are solved
    """Check that points have pairs of numbers, and that a peak has a middle. Raises ContractError."""
    numbers, most = solved.size("numbers"), CONTRACT.filled(solved.options)["max"]
    if numbers is not None and numbers % 2:
        raise ContractError(f"points are pairs of numbers, and each cell has {numbers}")
    if solved.options.get("peak", 1) % 2 == 0:
        raise ContractError(f"peak is {solved.options['peak']}; a square around a cell has an odd number of cells")
    solved.sizes |= {"n": None, "points": None if numbers is None else numbers // 2, "max": most}


CONTRACT = Contract(
    name="center_decode",
    meaning="Boxes and points from maps of centers, as CenterNet and CenterFace give them",
    inputs=(
        FormalParameter(
            "heat",
            "T",
            forms("rows classes height width"),
            "that a center lies in a cell",
            units=(PROBABILITY,),
            not_nan=True,
        ),
        FormalParameter("sizes", "S", forms("rows 2 height width"), "width and height", not_nan=True),
        FormalParameter("shifts", "O", forms("rows 2 height width"), "where in the cell", option=OPTIONAL),
        FormalParameter("points", "P", forms("rows numbers height width"), "pairs of numbers", option=OPTIONAL),
    ),
    outputs=(
        BOXES,
        FormalParameter("scores", "float32", forms("rows n"), "the heat of each", units=(PROBABILITY,)),
        FormalParameter("classes", "int64", forms("rows n"), "its class", units=(INDEX,)),
        FormalParameter(
            "points",
            "float32",
            forms("rows n points 2"),
            "x and y of its points",
            units=(PIXELS,),
            option=OPTIONAL,
            named_by="points",
        ),
    ),
    attributes=(
        Attribute("stride", "FLOAT", "the pixels of a cell", default=4, above=0),
        Attribute("score", "FLOAT", "cells of less heat are left out", default=0.25, least=0, most=1),
        Attribute("max", "INT", "the most that are kept", default=100, least=1),
        Attribute("peak", "INT", "the side of the square in which a cell is the hottest", default=3, least=1, most=99),
        Attribute("order", "STRING", "how pairs of numbers come", default="xy", choices=("xy", "yx")),
        Attribute("sizes_as", "STRING", "what sizes are", default="cells", choices=("cells", "log")),
        Attribute("points_from", "STRING", "from where points count", default="center", choices=("center", "box")),
        Attribute("middle", "FLOAT", "the place of a center in its cell", default=0, least=0, most=1),
    ),
    types=(REALS, *(replace(REALS, name=name) for name in "SOP")),
    arithmetic=_hold_points,
)


def build(options: Options, types: Types) -> Call:
    stride, least, middle = float(options["stride"]), float(options["score"]), float(options["middle"])
    names = [name for name in ("shifts", "points") if name in types]
    crossed = options["order"] == "yx"

    def pairs(values: Array) -> Array:
        """Return pairs [n, pairs, 2] as x, y of numbers [numbers, n]."""
        found = convert(values, "float32").T.reshape(values.shape[1], len(values) // 2, 2)
        return found[..., ::-1] if crossed else found

    def decode(heat: Array, sizes: Array, *further: Array) -> tuple[Array, ...]:
        heat = convert(heat, "float32")
        classes, y, x = np.nonzero((heat >= least) & (heat == _peaks(heat, options["peak"])))
        order = np.argsort(-heat[classes, y, x], kind="stable")[: options["max"]]
        classes, y, x = classes[order], y[order], x[order]
        given = dict(zip(names, further, strict=True))
        centers = np.stack([x, y], 1).astype(np.float32) + np.float32(middle)
        if "shifts" in given:
            centers += pairs(given["shifts"][:, y, x])[:, 0]
        sides = pairs(sizes[:, y, x])[:, 0]
        sides = np.exp(sides) if options["sizes_as"] == "log" else sides
        boxes = np.concatenate([centers - sides / 2, centers + sides / 2], axis=1)
        found = [boxes * np.float32(stride), heat[classes, y, x], classes.astype(np.int64)]
        if "points" in given:
            places = pairs(given["points"][:, y, x])
            of_box = boxes[:, np.newaxis, :2] + places * sides[:, np.newaxis]
            places = of_box if options["points_from"] == "box" else centers[:, np.newaxis] + places
            found.append(places * np.float32(stride))
        return tuple(found)

    return by_row(decode, 3 + ("points" in types), "heat", "sizes", *names)


def _peaks(heat: Array, side: int) -> Array:
    """Return the largest value of `side` by `side` cells around each cell of heat [classes, height, width]."""
    if not heat.size:
        return heat
    for axis in (1, 2):
        width = [(0, 0)] * 3
        width[axis] = (side // 2, side // 2)
        padded = np.pad(heat, width, constant_values=-np.inf)
        heat = np.lib.stride_tricks.sliding_window_view(padded, side, axis).max(axis=-1)
    return heat
