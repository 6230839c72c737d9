"""`cast: TYPE` — another element type. A value that the type cannot hold is an error; no number wraps around."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import ANY, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.elements import narrowed
from ortdeploy.tensors.types import ELEMENT_TYPES, FLOATING, INTEGERS, WIDER, TensorType
from ortdeploy.tensors.written_numbers import check_whole, narrowed_floats, read_numbers
from ortdeploy.transforms.protocol import Apply, Options

CONTRACT = Contract(
    name="cast",
    meaning="Another element type; a value that it cannot hold fails its row",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "any values"),),
    outputs=(FormalParameter("cast", "To", forms("rows *dims"), "the values", keeps=("layout", "unit")),),
    attributes=(
        Attribute("cast", "STRING", "the element type", required=True, choices=tuple(ELEMENT_TYPES), binds=("To",)),
    ),
    types=(ANY,),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    name = options["cast"]
    if name == "string":
        return lambda array: (array.astype(str).astype(object),)
    if name in WIDER:
        wider = np.dtype(WIDER[name])
        return lambda array: (narrowed(read_numbers(array, wider) if array.dtype == object else array, name),)
    dtype = np.dtype(name)

    def apply(array: Array) -> tuple[Array, ...]:
        if array.dtype == object:
            return (read_numbers(array, dtype),)
        if name in INTEGERS and array.dtype not in (dtype, bool) and array.size:
            check_whole(array.min().item(), array.max().item(), dtype)
        return (narrowed_floats(array, dtype) if name in FLOATING else array.astype(dtype, copy=False),)

    return apply
