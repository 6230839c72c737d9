"""`rle` — masks as run-length text: the counts of COCO, as pycocotools and others read them.

A mask is every pixel that is not 0. The runs go down its columns, and the first one is of zeros. With the size of the
picture, {"size": [height, width], "counts": TEXT} is a mask of COCO.

Source: rleToString of cocodataset/cocoapi.
"""

from collections.abc import Iterator

import numpy as np

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import NUMBERS, Contract, FormalParameter, forms
from ortdeploy.transforms.protocol import Options

CONTRACT = Contract(
    name="rle",
    meaning="Masks as run-length text of COCO",
    inputs=(FormalParameter("masks", "T", forms("rows n height width"), "0 for what is outside"),),
    outputs=(FormalParameter("counts", "string", forms("rows n"), "the runs of each mask"),),
    types=(NUMBERS,),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    def text(masks: Array) -> tuple[Array]:
        return (np.array(["".join(_signs(_runs(mask != 0))) for mask in masks], dtype=object),)

    return by_row(text, 1, "masks")


def _runs(mask: Array) -> list[int]:
    """Return the lengths of the runs of a mask [height, width] down its columns, the first of zeros."""
    flat = mask.T.reshape(-1)
    borders = np.flatnonzero(np.diff(np.concatenate([[False], flat]).astype(np.int8)))
    runs: list[int] = np.diff(np.concatenate([[0], borders, [flat.size]])).tolist()
    return runs


_LOW, _MORE, _FIRST = 0x1F, 0x20, 48
"""Five bits of a number, the bit that says that more follow, and the sign of a zero."""


def _signs(runs: list[int]) -> Iterator[str]:
    """Yield the signs of runs: from the fourth on, each as its difference from the one before the last."""
    for place, run in enumerate(runs):
        left = run - runs[place - 2] if place > 2 else run  # noqa: PLR2004  as the source has it
        while True:
            low = left & _LOW
            left >>= 5
            if left == (-1 if low & 0x10 else 0):
                yield chr(low + _FIRST)
                break
            yield chr((low | _MORE) + _FIRST)
