"""`l2_normalize` — divides vectors along the last dimension by their length; a vector of length zero stays as it is."""

import numpy as np

from ortdeploy.operations.protocol import Call, Types, one_by_one
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import REALS, Contract, FormalParameter, forms
from ortdeploy.transforms.protocol import Options

PACKAGE = None


CONTRACT = Contract(
    name="l2_normalize",
    meaning="Vectors along the last dimension divided by their length; one of length zero stays",
    inputs=(FormalParameter("x", "T", forms("rows *dims width"), "vectors"),),
    outputs=(FormalParameter("vectors", "T", forms("rows *dims width"), "vectors of length one", keeps=("layout",)),),
    types=(REALS,),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    return one_by_one(_normalize)


def _normalize(array: Array) -> Array:
    length = np.linalg.norm(array, axis=-1, keepdims=True)
    return np.asarray(array / np.maximum(length, np.finfo(array.dtype).tiny), dtype=array.dtype)
