"""`squeeze: AXIS` — removes a dimension of size 1; axis 0 is the first dimension of a row."""

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


def _squeeze(solved: Solved, types: Types) -> None:
    """Remove a dimension of size 1 from the shape of a row. Raises ContractError."""
    shape = types["x"].shape
    if shape is None:
        return
    axis = solved.options["squeeze"]
    rank = len(shape) - 1  # of one row
    if not -rank <= axis < rank:
        raise ContractError(f"a row of {types['x']} has no axis {axis}")
    place = axis + 1 if axis >= 0 else len(shape) + axis
    if isinstance(shape[place], int) and shape[place] != 1:
        raise ContractError(f"axis {axis} of a row of {types['x']} is not 1")
    solved.runs["squeezed"] = (*shape[:place], *shape[place + 1 :])


CONTRACT = Contract(
    name="squeeze",
    meaning="Without a dimension of one",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "any values"),),
    outputs=(FormalParameter("squeezed", "T", (), "the values", keeps=("unit",)),),
    attributes=(row_axis("squeeze"),),
    types=(ANY,),
    arithmetic=_squeeze,
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    axis = options["squeeze"]
    return lambda array: (np.squeeze(array, axis=axis + 1 if axis >= 0 else axis),)
