"""`labels: COLUMN, from: FILE, as: NAME` — the text of each index; the file has one label a line, from index 0.

The plan carries the labels themselves under `lines`, so that a file that changes later changes nothing.
"""

import numpy as np

from ortdeploy.tensors.types import INTEGERS, InapplicableError, TensorType
from ortdeploy.transforms.protocol import Apply, Array, Options


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:  # noqa: ARG001  labels have no type
    if tensor.dtype is not None and tensor.dtype not in INTEGERS:
        raise InapplicableError(f"it needs whole numbers, such as argmax gives, and gets {tensor.dtype}")
    return (TensorType("string", tensor.shape),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    labels = np.array(options["lines"], dtype=object)

    def apply(array: Array) -> tuple[Array, ...]:
        low, high = array.min(initial=0), array.max(initial=0)
        if low < 0 or high >= len(labels):
            raise ValueError(f"there are labels for 0 to {len(labels) - 1} and an index of {low if low < 0 else high}")
        return (labels[array],)

    return apply
