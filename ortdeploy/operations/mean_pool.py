"""`mean_pool` — the mean of [rows, tokens, width] over the tokens that a mask [rows, tokens] keeps.

Other numbers than 0 and 1 in the mask are weights. If all are 0, the mean is 0.
"""

from collections.abc import Mapping

import numpy as np

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contracts import MASK, REALS, Contract, FormalParameter, TypeConstraint, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import FLOATING, INTEGERS
from ortdeploy.transforms.protocol import Options, computing_type

CONTRACT = Contract(
    name="mean_pool",
    meaning="The mean over the tokens that a mask keeps",
    inputs=(
        FormalParameter("x", "T", forms("rows tokens width"), "a vector a token"),
        FormalParameter("mask", "M", forms("rows tokens"), "1 for a token that counts, else 0", units=(MASK,)),
    ),
    outputs=(FormalParameter("mean", "T", forms("rows width"), "the means", keeps=("unit",)),),
    types=(REALS, TypeConstraint("M", ("bool", *INTEGERS, *FLOATING), "numbers")),
)


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  it has no options
    each = by_row(lambda x, mask: (_mean(x[np.newaxis], mask[np.newaxis])[0],), 1, "x", "mask")

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        x, mask = values["x"], values["mask"]
        if isinstance(x, list) or isinstance(mask, list):  # rows of several lengths
            return each(values)
        return (_mean(x, mask),)

    return apply


def _mean(x: Array, mask: Array) -> Array:
    """Return the means, float [rows, width], of x [rows, tokens, width] under a mask [rows, tokens]."""
    weights = convert(mask[..., np.newaxis], computing_type(x).name)
    total = weights.sum(axis=1)
    return convert(np.asarray((x * weights).sum(axis=1) / np.where(total == 0, 1, total)), x.dtype.name)
