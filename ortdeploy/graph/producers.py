"""Tells which operator computes the values of an output, behind those that only move, cast or quantize them."""

import onnx

_CARRY = frozenset(
    (
        "Cast",
        "DequantizeLinear",
        "Flatten",
        "Identity",
        "QuantizeLinear",
        "Reshape",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    )
)


def operator_of(skeleton: bytes, output: str) -> str | None:
    """Return the operator that an output of the graph is from; None if nothing in the graph computes it."""
    graph = onnx.ModelProto.FromString(skeleton).graph
    producers = {name: node for node in graph.node for name in node.output if name}
    node = producers.get(output)
    while node is not None and node.op_type in _CARRY and node.input:
        node = producers.get(node.input[0])
    return node.op_type if node is not None else None
