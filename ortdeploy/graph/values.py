"""Estimates the memory of a graph: of its constants, and of the values that are in use at once at given input shapes.

What ONNX Runtime makes of it, by fusing nodes or by keeping freed buffers, may be twice as much or half: a run tells.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx

from ortdeploy.facts.models import WeightFacts
from ortdeploy.graph.shapes import infer_values
from ortdeploy.graph.walk import inner_graphs

_CONVOLUTIONS = {"Conv", "ConvTranspose", "FusedConv"}


def weigh(graph: onnx.GraphProto) -> WeightFacts:
    """Return the bytes of a graph's constants: its initializers, those of inner graphs, and Constant nodes.

    Constants in other files that only lookups read are not counted: they are mapped, and few of their pages are read.
    """
    graphs = (graph, *inner_graphs(graph.node))
    nodes = [node for one in graphs for node in one.node]
    filters = {name for node in nodes if node.op_type in _CONVOLUTIONS for name in node.input[1:2]}
    tables = {name for node in nodes if node.op_type == "Gather" for name in node.input[:1]}
    read = {name for node in nodes for name in node.input[1 if node.op_type == "Gather" else 0 :]}
    constants = [tensor for one in graphs for tensor in (*one.initializer, *_of_nodes(one))]
    return WeightFacts(
        size=sum(
            _constant_bytes(one)
            for one in constants
            if one.data_location != onnx.TensorProto.EXTERNAL or one.name not in tables - read
        ),
        of_convolutions=sum(_constant_bytes(one) for one in constants if one.name in filters),
    )


def live_bytes(skeleton: bytes, inputs: Mapping[str, Sequence[int | None]]) -> int | None:
    """Return the most bytes of values that a run holds at once, beside inputs; None if the graph leaves sizes open.

    Each value is held from the node that makes it to the last that reads it, results to the end. What follows from
    constants alone is made when the model is opened.
    """
    inferred = infer_values(skeleton, inputs)
    if inferred is None:
        return None
    graph, types = inferred
    computed = set(inputs)
    for node in graph.node:
        if not computed.isdisjoint(node.input):
            computed.update(filter(None, node.output))
    sizes = {name: _value_bytes(types.get(name)) for name in computed.difference(inputs)}
    if None in sizes.values():
        return None
    last = {name: place for place, node in enumerate(graph.node) for name in (*node.input, *node.output)}
    last |= {value.name: len(graph.node) for value in graph.output}
    most, held = 0, dict[str, int]()
    for place, node in enumerate(graph.node):
        held |= {name: sizes[name] or 0 for name in node.output if name in sizes}
        most = max(most, sum(held.values()))
        held = {name: size for name, size in held.items() if last[name] > place}
    return most


def largest_value(skeleton: bytes, inputs: Mapping[str, Sequence[int | None]]) -> tuple[str, int]:
    """Return the name and the number of elements of the largest value of a run, inputs included.

    Sizes that are not known count as 1.
    """
    sizes = {name: [size or 1 for size in shape] for name, shape in inputs.items()}
    graph, types = infer_values(skeleton, inputs) or (onnx.GraphProto(), {})
    for name in {name for node in graph.node for name in node.output if name in types}:
        sizes[name] = [max(dim.dim_value, 1) for dim in types[name].tensor_type.shape.dim]
    counts = ((math.prod(shape), name) for name, shape in sizes.items())
    most, name = max(counts, default=(0, ""))
    return name, most


def _of_nodes(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants of a graph's Constant nodes, under the names of their outputs."""
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and node.output:
                yield onnx.TensorProto(name=node.output[0], data_type=attribute.t.data_type, dims=attribute.t.dims)


def _value_bytes(kind: onnx.TypeProto | None) -> int | None:
    """Return a tensor's size in bytes; None if a dimension is not known, or it is no tensor of numbers."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    return math.prod(dim.dim_value for dim in dims) * _element_bytes(kind.tensor_type.elem_type)


def _constant_bytes(tensor: onnx.TensorProto) -> int:
    """Return what a constant takes in memory, in bytes, wherever its values lie."""
    return math.prod(tensor.dims) * _element_bytes(tensor.data_type)


def _element_bytes(element_type: int) -> int:
    """Return the bytes of one element; 16 for text."""
    if element_type == onnx.TensorProto.STRING:
        return 16
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(element_type).itemsize)
    except (KeyError, ValueError, TypeError):
        return 1
