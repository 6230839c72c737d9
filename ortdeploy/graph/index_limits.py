"""Finds inputs of a graph that are indices into a constant table, such as token ids into an embedding.

The CPU provider refuses an index outside of the table ("indices element out of data bounds"); CUDA gives zeros without
a message, and so does GatherBlockQuantized everywhere. The table's size is in the graph, so every row can be checked
before the run.
"""

import onnx

_PASSES_VALUES_ON = {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}

_KEEPS_SHAPE = {"Cast", "DequantizeLinear", "Identity"}
"""Operators that make a table of a table, as quantizing tools put them between a table and its lookup."""

_LOOKUPS = {"EmbedLayerNormalization": ((0, 2), (1, 4)), "Gather": ((1, 0),), "GatherBlockQuantized": ((1, 0),)}
"""Operators that look up indices in tables, with the places of both among their inputs."""

_AXES = {"Gather": "axis", "GatherBlockQuantized": "gather_axis"}
"""The attribute that tells the axis of a table; those that have one count negative indices back."""


def index_limits(graph: onnx.GraphProto) -> dict[str, tuple[int, int]]:
    """Return the lowest and highest value of every input that looks up a constant table; negative ones count back."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    sources = {value.name: value.name for value in graph.input}
    limits: dict[str, tuple[int, int]] = {}
    for node in graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        first = node.input[0] if node.input else ""
        if node.op_type == "Constant" and "value" in attributes and node.output:
            tables[node.output[0]] = tuple(attributes["value"].t.dims)
        elif node.op_type in _KEEPS_SHAPE and first in tables and node.output:
            tables[node.output[0]] = tables[first]
        elif node.op_type in _PASSES_VALUES_ON and first in sources and node.output:
            sources[node.output[0]] = sources[first]
        for index, table in _LOOKUPS.get(node.op_type, ()):
            if len(node.input) <= max(index, table) or node.input[index] not in sources:
                continue
            sizes, told = tables.get(node.input[table], ()), _AXES.get(node.op_type)
            axis = attributes[told].i if told in attributes else 0
            if -len(sizes) <= axis < len(sizes):
                name, size = sources[node.input[index]], sizes[axis]
                low, high = limits.get(name, (-size, size - 1))
                limits[name] = max(low, -size if told else 0), min(high, size - 1)
    return limits
