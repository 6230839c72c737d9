"""`threshold: COLUMN, at: LIMIT, as: NAME` — whether each value is at least the limit."""

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options, need_numeric


def infer(options: Options, tensor: TensorType) -> tuple[TensorType, ...]:  # noqa: ARG001  the limit has no type
    need_numeric(tensor)
    return (TensorType("bool", tensor.shape),)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    limit = options["at"]
    return lambda array: (array >= limit,)
