"""Makes the outline of a model: the whole model without the bytes of its big constants.

Types, attributes, functions and kernels are judged without the weights, so opening an outline proves what opening the
model would, in milliseconds. Its big constants lie in one sparse external file, which ONNX Runtime maps.
"""

import math
from collections.abc import Iterator

import onnx

from ortdeploy.facts.models import HOLE, Outline
from ortdeploy.graph.walk import inner_graphs

MIN_IR_WITH_CONSTANTS = 4  # below it, an initializer is an input too
_BIG = 1024  # bytes of a constant that ONNX Runtime does not need to see
_BITS = {
    "BOOL": 8, "FLOAT4E2M1": 4, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2, "FLOAT16": 16, "BFLOAT16": 16, "INT8": 8,
    "UINT8": 8, "INT16": 16, "UINT16": 16, "FLOAT": 32, "INT32": 32, "UINT32": 32, "DOUBLE": 64, "INT64": 64,
    "UINT64": 64, "COMPLEX64": 64, "COMPLEX128": 128, "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8,
    "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8,
}  # fmt: skip
_BITS_OF = {number: _BITS[name] for name, number in onnx.TensorProto.DataType.items() if name in _BITS}


def take_outline(model: onnx.ModelProto) -> Outline | None:
    """Replace the big constants of a model by places in a sparse file, and return the model; None if one has no place.

    Those of Constant nodes become initializers, as ONNX Runtime makes them: only these can lie in another file.
    A node without a name gets the name of its output in the outline, so that a refusal can be understood.
    """
    graphs = [model.graph, *inner_graphs(model.graph.node)]
    if model.ir_version >= MIN_IR_WITH_CONSTANTS:
        for graph in graphs:
            _gather_constants(graph)
    largest = 0
    for tensor in [tensor for graph in graphs for tensor in graph.initializer]:
        size = constant_size(tensor)
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if external and size is None:
            return None
        if size is not None and (external or size > _BIG):
            tensor.CopyFrom(_moved(tensor, tensor.name, size))
            largest = max(largest, size)
    unnamed = [node for node in _nodes(model) if not node.name]
    for node in unnamed:
        made = next((name for name in node.output if name), "nothing")
        node.name = f"without a name, makes {made}"
    outline = Outline(model=model.SerializeToString(), largest=largest)
    for node in unnamed:
        node.ClearField("name")
    return outline


def _gather_constants(graph: onnx.GraphProto) -> None:
    """Make initializers of the Constant nodes of a graph whose values are big."""
    for node in [node for node in graph.node if node.op_type == "Constant" and len(node.output) == 1]:
        for attribute in node.attribute:
            size = constant_size(attribute.t) or 0
            if attribute.name == "value" and size > _BIG:
                graph.initializer.append(_moved(attribute.t, node.output[0], size))
                graph.node.remove(node)


def _moved(tensor: onnx.TensorProto, name: str, size: int) -> onnx.TensorProto:
    """Return a constant whose bytes are in the sparse file; they are not copied, for a model keeps every copy."""
    moved = onnx.TensorProto(name=name, data_type=tensor.data_type, dims=tensor.dims)
    moved.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", HOLE), ("offset", "0"), ("length", str(size))):
        moved.external_data.add(key=key, value=value)
    return moved


def constant_size(tensor: onnx.TensorProto) -> int | None:
    """Return how many bytes a constant's shape needs; None if its type has no fixed size, or a size is invalid."""
    bits = _BITS_OF.get(tensor.data_type)
    if bits is None or any(size < 0 for size in tensor.dims):
        return None
    return -(-math.prod(tensor.dims) * bits // 8)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of the model, of graphs inside nodes and of the model's own functions."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    yield from nodes
    for graph in inner_graphs(nodes):
        yield from graph.node
