"""`class_map` — the class of each pixel of a picture, from the scores of a segmenter: uint8 [height, width].

Scores [classes, height, width] are mixed of the nearest four at each pixel of the picture, and the highest wins. `how`
is of `letterbox`, whose image may be larger than the map by `size`; or the height and width of a picture that fills the
map.

Source: post_process_semantic_segmentation of transformers, and PyTorch's interpolate.
"""

import numpy as np

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.operations.resizing import HOW, SIZE, TYPES, hold_size, resized, taps_of_picture
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import Contract, FormalParameter, SizeConstraint, forms
from ortdeploy.transforms.protocol import Options, computable

_MOST = 256
"""The classes that uint8 can number."""
_AT_ONCE = 2_000_000
"""Scores that are mixed at once: those of all pixels may take gigabytes."""


CONTRACT = Contract(
    name="class_map",
    meaning="The class of each pixel of the picture, from scores of a segmenter",
    inputs=(
        FormalParameter(
            "scores", "T", forms("rows classes map_height map_width"), "the scores of each class", finite=True
        ),
        HOW,
    ),
    outputs=(FormalParameter("map", "uint8", forms("rows height width"), "the class with the highest score"),),
    attributes=(SIZE,),
    types=TYPES,
    sizes=(
        SizeConstraint("classes", least=1),
        SizeConstraint("map_height", least=1),
        SizeConstraint("map_width", least=1),
    ),
    arithmetic=hold_size,
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every tensor
    def choose(scores: Array, how: Array) -> tuple[Array]:
        if len(scores) > _MOST:
            raise ValueError(f"a picture of uint8 has {_MOST} classes at most, and these are {len(scores)}")
        (upper, lower, y), across = taps_of_picture(how, scores.shape[1:], options)
        found = np.empty((len(upper), len(across[0])), np.uint8)
        step = max(_AT_ONCE // (len(scores) * found.shape[1]), 1)
        for begin in range(0, len(found), step):
            some = slice(begin, begin + step)
            first, last = upper[some][0], lower[some][-1]  # each row of the map is mixed for few of the picture
            rows = upper[some] - first, lower[some] - first, y[some]
            found[some] = resized(computable(scores[:, first : last + 1]), rows, across).argmax(axis=0)
        return (found,)

    return by_row(choose, 1, "scores", "how")
