"""`join` — one text of the texts that a row lists, with `by` between them."""

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import Attribute, Contract, FormalParameter, forms
from ortdeploy.transforms.protocol import Options

CONTRACT = Contract(
    name="join",
    meaning="One text of those that a row lists",
    inputs=(FormalParameter("x", "string", forms("rows n"), "a list of texts a row"),),
    outputs=(FormalParameter("text", "string", forms("rows"), "the text"),),
    attributes=(Attribute("by", "STRING", "what stands between them", default=" ", least=0, most=255),),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  texts alone
    between: str = options["by"]

    def joined(texts: Array) -> tuple[str]:
        return (between.join(map(str, texts)),)

    return by_row(joined, 1, "x")
