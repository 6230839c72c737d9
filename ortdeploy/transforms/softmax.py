"""`softmax: COLUMN, as: NAME` — probabilities along the last dimension, without overflow."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import NUMBERS, PROBABILITY, Contract, FormalParameter, SizeConstraint, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, computable, result_type

CONTRACT = Contract(
    name="softmax",
    meaning="Probabilities along the last dimension",
    inputs=(FormalParameter("x", "T", forms("rows *dims classes"), "scores"),),
    outputs=(
        FormalParameter(
            "probability",
            "float(T)",
            forms("rows *dims classes"),
            "the probabilities",
            units=(PROBABILITY,),
            named_by="as",
        ),
    ),
    types=(NUMBERS,),
    sizes=(SizeConstraint("classes", least=1),),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    return lambda array: (convert(softmax(computable(array)), result_type(array)),)


def softmax(scores: Array) -> Array:
    """Return probabilities of scores […, classes]; the largest score is subtracted first, so nothing overflows."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))
