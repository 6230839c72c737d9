"""`standardize: true` — each row with its mean 0 and its variance 1: (value - mean) / sqrt(variance + epsilon).

Source: zero_mean_unit_var_norm of transformers' Wav2Vec2FeatureExtractor.
"""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import REALS, Attribute, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

_ROWS = forms("rows *dims")

CONTRACT = Contract(
    name="standardize",
    meaning="Each row with its mean 0 and its variance 1",
    inputs=(FormalParameter("x", "T", _ROWS, "recordings, or other numbers", finite=True),),
    outputs=(FormalParameter("standardized", "T", _ROWS, "the same, standardized", keeps=("layout",)),),
    attributes=(Attribute("epsilon", "FLOAT", "what is added to the variance", default=1e-7, least=0),),
    types=(REALS,),
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every type
    def apply(array: Array) -> tuple[Array, ...]:
        if not array.size:
            return (array,)
        axes = tuple(range(1, array.ndim))
        values = convert(array, "float64")
        low, high = values.min(axis=axes, keepdims=True), values.max(axis=axes, keepdims=True)
        mean = np.where(low == high, low, values.mean(axis=axes, keepdims=True))  # the mean is rounded, and low is not
        centred = values - mean
        spread = np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + options["epsilon"])
        if not spread.all():
            raise ValueError("all values of the row are the same, which have no variance; give an epsilon above 0")
        return (convert(centred / spread, array.dtype.name),)

    return apply
