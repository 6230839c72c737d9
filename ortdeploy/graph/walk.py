"""Walks through a model: the graphs inside of its nodes, and every tensor, wherever the format lets one stand.

Whoever looks for the files, the bytes or the digests of a model takes them from here, so that none is looked for in
the graph alone and forgotten in a function.
"""

from collections.abc import Iterable, Iterator

import onnx


def own_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside of a node, such as the branches of an If, and not what is inside of these."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def inner_graphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside of nodes, at any depth, outer ones first."""
    for node in nodes:
        for inner in own_graphs(node):
            yield inner
            yield from inner_graphs(inner.node)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: those of its graph, functions and training information, inner graphs included."""
    yield from model.graph.initializer
    yield from inner_tensors(model)


def inner_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model but the initializers of its graph."""
    yield from _sparse(model.graph.sparse_initializer)
    yield from _of_nodes(model.graph.node)
    for function in model.functions:
        yield from _of_nodes(function.node)
        yield from _of_attributes(function.attribute_proto)
    for training in model.training_info:
        for graph in (training.initialization, training.algorithm):
            yield from _of_graph(graph)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _sparse(graph.sparse_initializer)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.type in _PLAIN:
            continue
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from _sparse([attribute.sparse_tensor])
        yield from _sparse(attribute.sparse_tensors)
        if attribute.HasField("g"):
            yield from _of_graph(attribute.g)
        for graph in attribute.graphs:
            yield from _of_graph(graph)


_PLAIN = frozenset({
    onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT, onnx.AttributeProto.STRING, onnx.AttributeProto.FLOATS,
    onnx.AttributeProto.INTS, onnx.AttributeProto.STRINGS,
})  # fmt: skip
"""Types of attributes that hold no tensor; most attributes are of these."""


def _sparse(values: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for one in values:
        yield one.values
        yield one.indices
