"""Predicts what kernels of ONNX Runtime's CPU provider take while they compute, beside their inputs and outputs.

The sizes were compared with the versions of `versions.TESTED_WITH`; of another version, findings that rest on them are
assumed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from ortdeploy.graph.sizes import value_bytes

Types = Mapping[str, onnx.TypeProto]


def scratch_bytes(node: onnx.NodeProto, types: Types) -> Sequence[int]:
    """Return the sizes of the buffers that a node's kernel takes while it runs; none if sizes are not known."""
    find = _KERNELS.get(node.op_type)
    return [size for size in find(node, types) if size] if find is not None and node.input else []


def _as_much_again(node: onnx.NodeProto, types: Types) -> Sequence[int]:
    """Return a copy of its input."""
    return [_bytes(node, types) or 0]


def _of_lstm(node: onnx.NodeProto, types: Types) -> Sequence[int]:
    return _recurrent(node, types, gates=4, states=3, last=2)


def _of_gru(node: onnx.NodeProto, types: Types) -> Sequence[int]:
    """Return what a GRU takes; its biases are repeated for each row."""
    is_linear = bool(_attributes(node).get("linear_before_reset", 0))
    biases = (4 if is_linear else 3) if any(node.input[3:4]) else 0
    return _recurrent(node, types, gates=3, states=2 + biases + is_linear, last=1)


def _recurrent(node: onnx.NodeProto, types: Types, *, gates: int, states: int, last: int) -> Sequence[int]:
    """Return the buffers in the order in which they are taken; those of both directions are held to the end.

    These are its `last` outputs, if no node reads them, and for each direction some `states` of one step, and the
    gates of all steps. The way back takes its input and its output in reverse, too.
    """
    taken, attributes = _bytes(node, types), _attributes(node)
    if not taken:
        return []
    steps, _, width = (dim.dim_value for dim in types[node.input[0]].tensor_type.shape.dim)
    state = taken // (steps * width) * int(attributes.get("hidden_size", 0))
    direction = attributes.get("direction", b"forward")
    ways = 2 if direction == b"bidirectional" else 1
    unwanted = sum(1 for at in range(1, last + 1) if not any(node.output[at : at + 1]))
    forward = [*[state] * states, gates * state * steps]
    back = [*forward, taken, state * steps]
    own = back if direction == b"reverse" else forward
    return [*[ways * state] * unwanted, *own, *(back if ways > 1 else [])]


def _attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}


def _bytes(node: onnx.NodeProto, types: Types) -> int | None:
    """Return the size of a node's first input; None if it is not known."""
    return value_bytes(types[node.input[0]]) if node.input[0] in types else None


_KERNELS: Mapping[str, Callable[[onnx.NodeProto, Types], Sequence[int]]] = {
    **dict.fromkeys(("BiasGelu", "FastGelu"), _as_much_again),
    "GRU": _of_gru,
    "LSTM": _of_lstm,
}
"""Measured on onnxruntime 1.31.1, where sums of these were within a tenth of what the arena held."""
