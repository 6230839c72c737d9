"""`threshold: COLUMN, at: LIMIT, as: NAME` — whether each value is at least the limit, as booleans."""

from ortdeploy.tensors.contracts import NUMBERS, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.elements import widened
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

CONTRACT = Contract(
    name="threshold",
    meaning="Whether each value is at least a limit",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "numbers"),),
    outputs=(FormalParameter("hit", "bool", forms("rows *dims"), "the answers", named_by="as"),),
    attributes=(Attribute("at", "FLOAT", "the limit", required=True),),
    types=(NUMBERS,),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    limit = options["at"]
    return lambda array: (widened(array) >= limit,)
