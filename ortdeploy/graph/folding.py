"""Tells what becomes of a graph's constants when ONNX Runtime opens it, by their types alone.

Nodes that read nothing but constants are computed once (constant_folding.cc): their results are kept, and the constants
before them are not. So are casts of weights in half precision to float32. What dequantizes weights stays. What the
passes of a loop carry looks like a constant here, so in graphs with loops, only casts and transpositions of constants
themselves count.
"""

from collections.abc import Collection

import onnx

from ortdeploy.facts.models import FoldedConstants
from ortdeploy.graph.half_precision import in_single_precision
from ortdeploy.graph.random_ops import ALWAYS_DRAW
from ortdeploy.graph.shapes import infer_values
from ortdeploy.graph.sizes import value_bytes

_KEPT = frozenset({"Constant", "DequantizeLinear", "QuantizeLinear"})
_MOVES = frozenset({"Cast", "Transpose"})


def folded_constants(skeleton: bytes, fed: Collection[str], in_float: Collection[str] = ()) -> FoldedConstants:
    """Return the bytes of constants that are replaced, and of those that take their place.

    `fed` are the inputs of the graph. Operators `in_float` compute float16 in float32.
    """
    inferred = infer_values(skeleton, {})
    if inferred is None:
        return FoldedConstants()
    graph, types = in_single_precision(*inferred, in_float)
    at_run, folded = _parted(graph, fed, has_loops=_has_loops(onnx.ModelProto.FromString(skeleton).graph))
    sizes = {name: value_bytes(kind) or 0 for name, kind in types.items()}
    made = {name for node in folded for name in node.output}
    kept = {name for node in at_run for name in node.input} | {value.name for value in graph.output}
    replaced = {name for node in folded for name in node.input} - made - kept
    results = [sizes.get(name, 0) for name in made & kept]
    return FoldedConstants(
        replaced=sum(sizes.get(name, 0) for name in replaced), made=sum(results), largest=max(results, default=0)
    )


def _parted(
    graph: onnx.GraphProto, fed: Collection[str], *, has_loops: bool
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """Return the nodes that run each time, and those that are computed once."""
    computed = set(fed)
    made = {name for node in graph.node for name in node.output} if has_loops else set()
    at_run, folded = [], []
    for node in graph.node:
        is_kept = node.op_type in _KEPT or node.op_type in ALWAYS_DRAW or not any(node.input)
        is_kept |= has_loops and (node.op_type not in _MOVES or not made.isdisjoint(node.input))
        if is_kept or not computed.isdisjoint(node.input):
            at_run.append(node)
            if node.op_type != "Constant":
                computed.update(name for name in node.output if name)
        else:
            folded.append(node)
    return at_run, folded


def _has_loops(graph: onnx.GraphProto) -> bool:
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return any(node.op_type == "Loop" for node in graph.node) or any(map(_has_loops, inner))
