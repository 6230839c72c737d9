"""`labels: COLUMN, from: FILE, as: NAME` — the label of each index; the file has one label a line, from index 0.

With `model` instead of `from`, the labels are the names in that model's `metadata`, as ultralytics writes them. The
plan holds the labels themselves under `lines`, so a file that changes after planning has no effect.
"""

import numpy as np

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    INDEX,
    WHOLE,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    Types,
    forms,
)
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

NAMES = "names"
"""The metadata key under which ultralytics stores the names of classes."""


def _hold_source(solved: Solved, types: Types) -> None:  # noqa: ARG001  settings alone
    """Check that labels come from exactly one place. Raises ContractError."""
    named = [name for name in ("from", "model") if name in solved.options]
    if len(named) != 1:
        raise ContractError(
            f"it takes its names from a file (from) or a model, and gets {' and '.join(named) or 'none'}"
        )


CONTRACT = Contract(
    name="labels",
    meaning="The text on the line of each index",
    inputs=(FormalParameter("x", "T", forms("rows *dims"), "indices", units=(INDEX,)),),
    outputs=(FormalParameter("label", "string", forms("rows *dims"), "the text", named_by="as"),),
    attributes=(
        Attribute("from", "STRING", "a text file with one label a line", path="file"),
        Attribute("model", "STRING", "a model of the job that has the labels in its metadata", least=1, most=255),
        Attribute("metadata", "STRING", "the key of the labels there", default=NAMES, least=1, most=255),
    ),
    types=(WHOLE,),
    arithmetic=_hold_source,
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    labels = np.array(options["lines"], dtype=object)

    def apply(array: Array) -> tuple[Array, ...]:
        low, high = array.min(initial=0), array.max(initial=0)
        if low < 0 or high >= len(labels):
            raise ValueError(f"there are labels for 0 to {len(labels) - 1} and an index of {low if low < 0 else high}")
        return (labels[array],)

    return apply
