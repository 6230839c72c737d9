"""`tail: N` — the last N values along the first dimension of a row; a shorter row stays as it is."""

from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.head import keep_at_most
from ortdeploy.transforms.protocol import Apply, Options

CONTRACT = keep_at_most("tail")


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every tensor
    return lambda array: (array[:, -options["tail"] :],)
