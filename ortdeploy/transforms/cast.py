"""`cast: TYPE` — another element type. A value that the type cannot hold is an error; no number wraps around."""

from ortdeploy.tensors.contracts import ANY, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import cast
from ortdeploy.tensors.types import ELEMENT_TYPES, TensorType
from ortdeploy.tensors.written_numbers import read_numbers
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
        return lambda array: (cast(array, name),)
    return lambda array: (read_numbers(array, name) if array.dtype == object else cast(array, name),)
