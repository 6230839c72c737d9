"""`scale: FACTOR` — multiplies by a factor; integers become float32."""

import numpy as np

from ortdeploy.tensors.contracts import NUMBERS, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.elements import widened
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, computing_type, result_type

CONTRACT = Contract(
    name="scale",
    meaning="Multiplies; integers become float32",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "numbers"),),
    outputs=(FormalParameter("scaled", "float(T)", forms("rows *dims"), "the products", keeps=("layout",)),),
    attributes=(Attribute("scale", "FLOAT", "the factor", required=True),),
    types=(NUMBERS,),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    factor = float(options["scale"])

    def apply(array: np.ndarray) -> tuple[np.ndarray, ...]:
        dtype = computing_type(array)
        scaled = np.multiply(widened(array), dtype.type(factor), dtype=dtype)
        return (convert(scaled, result_type(array)),)

    return apply
