"""`top_k: COLUMN, k: K, as: NAME` — the indices of the K largest values, largest first; `values_as` adds them."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    INDEX,
    NUMBERS,
    OPTIONAL,
    Attribute,
    Contract,
    FormalParameter,
    SizeConstraint,
    forms,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

CONTRACT = Contract(
    name="top_k",
    meaning="The indices of the k largest values along the last dimension, largest first",
    inputs=(FormalParameter("x", "T", forms("rows *dims classes"), "scores"),),
    outputs=(
        FormalParameter("indices", "int64", forms("rows *dims k"), "the indices", units=(INDEX,), named_by="as"),
        FormalParameter(
            "values", "T", forms("rows *dims k"), "the values", keeps=("unit",), option=OPTIONAL, named_by="values_as"
        ),
    ),
    attributes=(Attribute("k", "INT", "how many", required=True, least=1, binds=("k",)),),
    types=(NUMBERS,),
    sizes=(SizeConstraint("classes", least="k"),),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    k, with_values = options["k"], "values_as" in options

    def apply(array: Array) -> tuple[Array, ...]:
        # Sorting the reversed row stably and reading it backwards puts the lower of equal indices first, as ONNX does.
        backwards = np.argsort(array[..., ::-1], axis=-1, kind="stable")[..., : -k - 1 : -1]
        index = array.shape[-1] - 1 - backwards
        return (index, np.take_along_axis(array, index, axis=-1)) if with_values else (index,)

    return apply
