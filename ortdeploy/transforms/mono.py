"""`mono: true` — the mean over the channels of [channels, frames]; a recording of one channel stays as it is."""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import REALS, Contract, FormalParameter, SizeConstraint, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, computing_type

CONTRACT = Contract(
    name="mono",
    meaning="One channel, the mean of all",
    inputs=(FormalParameter("x", "T", forms("rows frames", "rows channels frames"), "recordings"),),
    outputs=(FormalParameter("mono", "T", forms("rows frames"), "recordings of one channel", keeps=("unit",)),),
    types=(REALS,),
    sizes=(SizeConstraint("channels", least=1),),
)

_MONO = 2
"""The rank of recordings of one channel: rows and frames."""


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  it has no options
    def apply(array: Array) -> tuple[Array, ...]:
        if array.ndim == _MONO:
            return (array,)
        return (convert(np.asarray(array.mean(axis=1, dtype=computing_type(array))), array.dtype.name),)

    return apply
