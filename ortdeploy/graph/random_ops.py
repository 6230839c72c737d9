"""Finds operators that draw random numbers, so that two runs of the same rows give different results."""

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import numpy_helper

from ortdeploy.graph.walk import own_graphs

ALWAYS_DRAW = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Sampling",
}  # fmt: skip
_DOMAINS = {"", "ai.onnx", "com.microsoft"}
_TRAINING = 2  # Dropout's third input, from operator set 12 on: whether it drops anything


def random_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the drawing operators of a model, each once: in its graph, in inner graphs, in its functions."""
    bodies = (function.node for function in model.functions)
    found = list(_drawing(model.graph.node, _named(model.graph)))
    found += [name for nodes in bodies for name in _drawing(nodes, {})]
    return tuple(sorted(set(found)))


def _named(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer}


def _drawing(nodes: Iterable[onnx.NodeProto], outer: Mapping[str, onnx.TensorProto]) -> Iterator[str]:
    known = dict(outer)
    for node in nodes:
        if node.op_type == "Constant":
            known.update((node.output[0], one.t) for one in node.attribute if one.name == "value")
        elif node.domain in _DOMAINS and (
            node.op_type in ALWAYS_DRAW or (node.op_type == "Dropout" and _drops(node, known))
        ):
            yield node.op_type
        for graph in own_graphs(node):
            yield from _drawing(graph.node, {**known, **_named(graph)})


def _drops(node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto]) -> bool:
    """Return whether a Dropout may drop: constants tell, or the model computes it."""
    if len(node.input) <= _TRAINING or not node.input[_TRAINING]:
        return False
    training = known.get(node.input[_TRAINING])
    if training is None:
        return True
    if training.data_location == onnx.TensorProto.EXTERNAL:
        return True
    return bool(numpy_helper.to_array(training).any())
