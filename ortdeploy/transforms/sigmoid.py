"""`sigmoid: COLUMN, as: NAME` — 1 / (1 + exp(-x)), without overflow."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import NUMBERS, PROBABILITY, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, computable, result_type

CONTRACT = Contract(
    name="sigmoid",
    meaning="1 / (1 + exp(-x)), from 0 to 1",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "numbers"),),
    outputs=(
        FormalParameter(
            "probability", "float(T)", forms("rows *dims"), "from 0 to 1", units=(PROBABILITY,), named_by="as"
        ),
    ),
    types=(NUMBERS,),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    return lambda array: (convert(sigmoid(computable(array)), result_type(array)),)


def sigmoid(values: Array) -> Array:
    """Return 1 / (1 + exp(-x)) of floats […]; each sign of x uses the form whose exponential is at most 1."""
    small = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1 / (1 + small), small / (1 + small)))
