"""`labels: COLUMN, from: FILE, as: NAME` — the text of each index; the file has one label a line, from index 0.

The plan carries the labels themselves under `lines`, so that a file that changes later changes nothing.
"""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import INDEX, WHOLE, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

CONTRACT = Contract(
    name="labels",
    meaning="The text on the line of each index",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "indices", units=(INDEX,)),),
    outputs=(FormalParameter("label", "string", forms("rows *dims"), "the text", named_by="as"),),
    attributes=(Attribute("from", "STRING", "a text file with one label a line", required=True, path="file"),),
    types=(WHOLE,),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    labels = np.array(options["lines"], dtype=object)

    def apply(array: Array) -> tuple[Array, ...]:
        low, high = array.min(initial=0), array.max(initial=0)
        if low < 0 or high >= len(labels):
            raise ValueError(f"there are labels for 0 to {len(labels) - 1} and an index of {low if low < 0 else high}")
        return (labels[array],)

    return apply
