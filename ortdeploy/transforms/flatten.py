"""`flatten: true` — makes each row a vector."""

import math

from ortdeploy.tensors.contracts import ANY, Contract, FormalParameter, Solved, Types, forms
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options


def _flatten(solved: Solved, types: Types) -> None:  # noqa: ARG001  the dimensions are solved
    """Multiply the sizes of a row's dimensions."""
    sizes = [size for size in solved.runs.get("*dims", (None,)) if isinstance(size, int)]
    if len(sizes) == len(solved.runs.get("*dims", (None,))):
        solved.sizes["size"] = math.prod(sizes)


CONTRACT = Contract(
    name="flatten",
    meaning="Each row becomes a vector",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "any values"),),
    outputs=(FormalParameter("vector", "T", forms("rows size"), "vectors", keeps=("unit",)),),
    types=(ANY,),
    arithmetic=_flatten,
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    return lambda array: (array.reshape(len(array), math.prod(array.shape[1:])),)
