"""Finds inputs of a graph that are indices into a constant table, such as token ids into an embedding.

The CPU provider refuses an index outside of the table ("indices element out of data bounds"); CUDA gives zeros without
a message. The table's size is in the graph, so every row can be checked before the run.
"""

import onnx

_PASSES_VALUES_ON = {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


def index_limits(graph: onnx.GraphProto) -> dict[str, tuple[int, int]]:
    """Return the lowest and highest value of every input that a Gather of a constant uses; negative ones count back."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    sources = {value.name: value.name for value in graph.input}
    limits: dict[str, tuple[int, int]] = {}
    for node in graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant" and "value" in attributes and node.output:
            tables[node.output[0]] = tuple(attributes["value"].t.dims)
        elif node.op_type in _PASSES_VALUES_ON and node.input and node.input[0] in sources and node.output:
            sources[node.output[0]] = sources[node.input[0]]
        elif node.op_type == "Gather" and len(node.input) > 1 and node.input[1] in sources:
            sizes = tables.get(node.input[0], ())
            axis = attributes["axis"].i if "axis" in attributes else 0
            if -len(sizes) <= axis < len(sizes):
                name, size = sources[node.input[1]], sizes[axis]
                low, high = limits.get(name, (-size, size - 1))
                limits[name] = max(low, -size), min(high, size - 1)
    return limits
