"""`pixels` — numbers from 0 to 1, such as a mask or an image, as uint8 from 0 to 255; other values are clipped."""

import numpy as np

from ortdeploy.operations.protocol import Call, Types, one_by_one
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import MASK, NORMALISED, PROBABILITY, REALS, Contract, FormalParameter, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options, computable

CONTRACT = Contract(
    name="pixels",
    meaning="Numbers from 0 to 1, such as a mask or an image, as uint8 from 0 to 255",
    inputs=(
        FormalParameter(
            "x", "T", forms("rows *dims"), "from 0 to 1", units=(NORMALISED, PROBABILITY, MASK), finite=True
        ),
    ),
    outputs=(FormalParameter("pixels", "uint8", forms("rows *dims"), "from 0 to 255", keeps=("layout",)),),
    types=(REALS,),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    return one_by_one(_pixels)


def _pixels(array: Array) -> Array:
    return convert(np.round(np.clip(computable(array), 0, 1) * 255), "uint8")
