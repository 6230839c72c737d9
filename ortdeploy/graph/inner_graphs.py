"""Puts the graphs inside of If and Loop in their nodes' place, so that what follows sees one list of nodes.

Of an If, the branch of most nodes stands for both; of a Loop, one pass. What a Loop gathers over its
passes has sizes that only its values tell, and is left open.
"""

from collections.abc import Iterator, Mapping

import onnx

_BRANCHES = {"then_branch", "else_branch"}


def inlined(graph: onnx.GraphProto) -> onnx.GraphProto:
    """Return a graph with the nodes and constants of its inner graphs in it; the same one if it has none."""
    if not any(_inner(node) for node in graph.node):
        return graph
    made = onnx.GraphProto()
    made.CopyFrom(graph)
    del made.node[:]
    for number, node in enumerate(graph.node):
        inner = _inner(node)
        if inner is None:
            made.node.append(node)
            continue
        body = inlined(inner)
        made_inside = {name for one in body.node for name in one.output}
        results = {value.name: name for value, name in _results(node, body) if name and value.name in made_inside}
        names = _names(body, f"{number}/", _bound(node, body)) | results
        for tensor in body.initializer:
            made.initializer.append(tensor)
            made.initializer[-1].name = names[tensor.name]
        made.node.extend(_renamed(one, names) for one in body.node)
        made.node.extend(
            onnx.helper.make_node("Identity", [names.get(value.name, value.name)], [name])
            for value, name in _results(node, body)
            if name and results.get(value.name) != name
        )
    return made


def _inner(node: onnx.NodeProto) -> onnx.GraphProto | None:
    """Return the graph that stands for a node; None if it has none that is known to run in its place."""
    graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}
    if node.op_type == "If" and graphs.keys() == _BRANCHES:
        return max(graphs.values(), key=lambda graph: (len(graph.node), graph.ByteSize()))
    return graphs.get("body") if node.op_type == "Loop" else None


def _bound(node: onnx.NodeProto, body: onnx.GraphProto) -> dict[str, str]:
    """Return what the inputs of a Loop's body are outside of it: what it carries has the sizes of what it began with.

    The first is the number of the pass.
    """
    return {value.name: name for value, name in zip(body.input[1:], node.input[1:], strict=False) if name}


def _results(node: onnx.NodeProto, body: onnx.GraphProto) -> Iterator[tuple[onnx.ValueInfoProto, str]]:
    """Yield the results of an inner graph with the names that they have outside; of a Loop, those that it carries."""
    if node.op_type == "If":
        yield from zip(body.output, node.output, strict=False)
    else:
        carried = len(body.input) - 2
        yield from zip(body.output[1 : 1 + carried], node.output, strict=False)


def _names(body: onnx.GraphProto, prefix: str, bound: Mapping[str, str]) -> dict[str, str]:
    """Return new names of what a graph makes itself: two branches may use the same ones."""
    own = [value.name for value in body.input] + [tensor.name for tensor in body.initializer]
    own += [name for node in body.node for name in node.output if name]
    return {name: prefix + name for name in own} | dict(bound)


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    renamed = onnx.NodeProto()
    renamed.CopyFrom(node)
    renamed.input[:] = [names.get(name, name) for name in node.input]
    renamed.output[:] = [names.get(name, name) for name in node.output]
    return renamed
