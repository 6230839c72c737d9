"""`l2_normalize` — divides vectors along the last dimension by their length; a vector of length zero stays as it is."""

import numpy as np

from ortdeploy.operations.protocol import Call, Types, one_by_one
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import REALS, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options, computable

CONTRACT = Contract(
    name="l2_normalize",
    meaning="Vectors along the last dimension divided by their length; one of length zero stays",
    inputs=(FormalParameter("x", "T", forms("rows *dims width"), "vectors"),),
    outputs=(FormalParameter("vectors", "T", forms("rows *dims width"), "vectors of length one", keeps=("layout",)),),
    types=(REALS,),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    return one_by_one(of_length_one)


def of_length_one(array: Array) -> Array:
    """Return vectors [*dims, width] of length one, those of very small and very large numbers too."""
    wide = computable(array)
    with np.errstate(over="ignore"):
        length = np.linalg.norm(wide, axis=-1, keepdims=True)
    small = np.finfo(wide.dtype).tiny
    odd = (length < np.sqrt(small)) | np.isinf(length)  # squares of very small or large numbers are 0 or infinities
    if odd.any():
        largest = np.abs(wide).max(axis=-1, keepdims=True, initial=0)
        wide = np.where(odd & (largest > 0) & np.isfinite(largest), wide / np.maximum(largest, small), wide)
        length = np.linalg.norm(wide, axis=-1, keepdims=True)
    return convert(np.asarray(wide / np.maximum(length, small)), array.dtype.name)
