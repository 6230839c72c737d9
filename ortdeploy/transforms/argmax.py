"""`argmax: COLUMN, as: NAME` — the index of the largest value along the last dimension; `value_as` names that value."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    INDEX,
    NUMBERS,
    OPTIONAL,
    Contract,
    FormalParameter,
    SizeConstraint,
    forms,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

CONTRACT = Contract(
    name="argmax",
    meaning="The index of the largest value along the last dimension",
    inputs=(FormalParameter("x", "T", forms("rows *dims classes"), "scores"),),
    outputs=(
        FormalParameter("index", "int64", forms("rows *dims"), "the index", units=(INDEX,), named_by="as"),
        FormalParameter(
            "value", "T", forms("rows *dims"), "the value", keeps=("unit",), option=OPTIONAL, named_by="value_as"
        ),
    ),
    types=(NUMBERS,),
    sizes=(SizeConstraint("classes", least=1),),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    with_value = "value_as" in options

    def apply(array: Array) -> tuple[Array, ...]:
        index = array.argmax(axis=-1)
        if not with_value:
            return (index,)
        return index, np.take_along_axis(array, index[..., None], axis=-1)[..., 0]

    return apply
