"""`head: N` — the first N values along the first dimension of a row; a shorter row stays as it is."""

from ortdeploy.tensors.contracts import ANY, Attribute, Contract, FormalParameter, Solved, Types, forms
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options


def keep_at_most(name: str) -> Contract:
    """Return the contract of a step that keeps values at one end of a row."""
    which = {"head": "first", "tail": "last"}[name]

    def shorten(solved: Solved, types: Types) -> None:  # noqa: ARG001  the size is solved
        have = solved.size("length")
        solved.sizes["kept"] = None if have is None else min(have, solved.options[name])

    return Contract(
        name=name,
        meaning=f"The {which} values of a row; a shorter row stays as it is",
        inputs=(FormalParameter("x", "T", forms("rows length *dims"), "any values"),),
        outputs=(FormalParameter(name, "T", forms("rows kept *dims"), f"the {which} values", keeps=("unit",)),),
        attributes=(Attribute(name, "INT", "how many along the first dimension", required=True, least=1),),
        types=(ANY,),
        arithmetic=shorten,
    )


CONTRACT = keep_at_most("head")


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    return lambda array: (array[:, : options["head"]],)
