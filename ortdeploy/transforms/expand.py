"""`expand: AXIS` — adds a dimension of size 1 to each row; axis 0 is the first dimension of a row."""

import numpy as np

from ortdeploy.tensors.contracts import (
    ANY,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    Types,
    forms,
    row_axis,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options


def _expand(solved: Solved, types: Types) -> None:
    """Add a dimension of size 1 to the shape of a row."""
    shape = types["x"].shape
    if shape is None:
        return
    axis = solved.options["expand"]
    rank = len(shape) - 1  # of one row
    if not -rank - 1 <= axis <= rank:
        raise ContractError(f"a row of {types['x']} has no place for axis {axis}")
    place = axis + 1 if axis >= 0 else len(shape) + 1 + axis
    solved.runs["expanded"] = (*shape[:place], 1, *shape[place:])


CONTRACT = Contract(
    name="expand",
    meaning="A new dimension of one",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "any values"),),
    outputs=(FormalParameter("expanded", "T", (), "the values", keeps=("unit",)),),
    attributes=(row_axis("expand"),),
    types=(ANY,),
    arithmetic=_expand,
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    axis = options["expand"]
    return lambda array: (np.expand_dims(array, axis + 1 if axis >= 0 else axis),)
