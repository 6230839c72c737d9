"""`cast: TYPE` — another element type. A value that the type cannot hold is an error; no number wraps around."""

from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import ANY, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.elements import narrowed
from ortdeploy.tensors.types import ELEMENT_TYPES, FLOATING, INTEGERS, WIDER, TensorType
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
        return lambda array: (narrowed(array, name),)
    dtype = np.dtype(name)

    def apply(array: Array) -> tuple[Array, ...]:
        if name in INTEGERS and array.dtype != dtype:
            _check_range(array, dtype)
        if name in FLOATING and array.dtype == object:
            return (np.array(array, dtype=dtype),)
        return (array.astype(dtype, copy=False),)

    return apply


def _check_range(array: Array, dtype: np.dtype[Any]) -> None:
    if array.dtype == bool or array.size == 0:
        return
    limits = np.iinfo(dtype)
    numbers = array.astype(np.float64) if array.dtype == object else array
    low, high = numbers.min(), numbers.max()
    if not (float(low) >= limits.min and float(high) <= limits.max):  # also catches NaN
        raise ValueError(f"{dtype} holds {limits.min} to {limits.max}; the row has {low} to {high}")
