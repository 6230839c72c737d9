"""`resample` — recordings at another sample rate, by libsoxr; the old rate is a setting or each row's value `rate`."""

import numpy as np
from msgspec.structs import replace

from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import OPTIONAL, WHOLE, ContractError, FormalParameter, Solved, forms
from ortdeploy.transforms import resample
from ortdeploy.transforms.protocol import Options

PACKAGE = resample.SOXR


def _hold_rate(solved: Solved, types: Types) -> None:
    """Check that the old rate is given exactly once. Raises ContractError."""
    if ("rate" in types) == ("from" in solved.options):
        raise ContractError("it takes the rate that recordings have from either the value rate or the setting from")
    if resample.CONTRACT.arithmetic is not None:
        resample.CONTRACT.arithmetic(solved, types)


CONTRACT = replace(
    resample.CONTRACT,
    inputs=(
        *resample.CONTRACT.inputs,
        FormalParameter("rate", "R", forms("rows"), "samples a second that come in", option=OPTIONAL),
    ),
    types=(*resample.CONTRACT.types, replace(WHOLE, name="R", advice="such as the column rate")),
    arithmetic=_hold_rate,
)


def build(options: Options, types: Types) -> Call:
    def apply(x: Array, rate: Array | None = None) -> tuple[Array]:
        have = options["from"] if rate is None else int(np.asarray(rate))
        if have < 1:
            raise ValueError(f"a recording has {have} samples a second")
        return (resample.resampled(x, have, options),)

    return by_row(apply, 1, "x", *(["rate"] if "rate" in types else []))
