"""`strip: start | end | both` — removes values at the ends of a row: white space of bytes, or the values in `of`."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import NUMBERS, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

WHITE_SPACE = (9, 10, 11, 12, 13, 32)
"""The bytes that Python's `bytes.strip` removes: tab, line feed, vertical tab, form feed, carriage return, space."""

CONTRACT = Contract(
    name="strip",
    meaning="A row without the values at its ends that mean nothing, of bytes white space",
    inputs=(FormalParameter("x", "T", forms("rows length *dims"), "bytes, or other numbers"),),
    outputs=(FormalParameter("stripped", "T", forms("rows kept *dims"), "what is left of each row", keeps=("unit",)),),
    attributes=(
        Attribute("strip", "STRING", "the end", required=True, choices=("start", "end", "both")),
        Attribute("of", "INTS", "the values that are taken away; without it white space: 9 to 13, and 32"),
    ),
    types=(NUMBERS,),
    even=False,
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    at_start, at_end = options["strip"] != "end", options["strip"] != "start"
    of = options.get("of", WHITE_SPACE)

    def strip(row: Array) -> Array:
        (kept,) = np.nonzero(~np.isin(row, of).all(axis=tuple(range(1, row.ndim))))
        if not len(kept):
            return row[:0]
        return row[kept[0] if at_start else 0 : kept[-1] + 1 if at_end else len(row)]

    return lambda array: (np.stack([strip(row) for row in array]),)
