"""Puts functions and the graphs inside of If, Loop and Scan in place, so that what follows sees one list of nodes.

Of an If, the branch of most nodes stands for both; of a Loop or Scan, one pass. What a Loop gathers over its
passes has sizes that only its values tell, and is left open. A Scan stays behind its pass, and tells what it gathers.
"""

from collections.abc import Iterator, Mapping

import onnx
import onnx.inliner

_BRANCHES = {"then_branch", "else_branch"}


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which the nodes of its own functions stand in place of their calls; the same if it has none."""
    return onnx.inliner.inline_local_functions(model) if model.functions else model


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
        made.node.extend(_slices(node, body, names))
        made.node.extend(_renamed(one, names) for one in body.node)
        made.node.extend(
            onnx.helper.make_node("Identity", [names.get(value.name, value.name)], [name])
            for value, name in _results(node, body)
            if name and results.get(value.name) != name
        )
        if node.op_type == "Scan":
            made.node.append(node)
    return made


def _inner(node: onnx.NodeProto) -> onnx.GraphProto | None:
    """Return the graph that stands for a node; None if it has none that is known to run in its place."""
    graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}
    if node.op_type == "If" and graphs.keys() == _BRANCHES:
        return max(graphs.values(), key=lambda graph: (len(graph.node), graph.ByteSize()))
    return graphs.get("body") if node.op_type in {"Loop", "Scan"} else None


def _scanned(node: onnx.NodeProto) -> int:
    """Return how many inputs of a Scan are gone through; of a Loop, none."""
    return next((one.i for one in node.attribute if one.name == "num_scan_inputs"), 0)


def _slices(node: onnx.NodeProto, body: onnx.GraphProto, names: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
    """Yield what makes the slices that a pass of a Scan takes of its inputs."""
    count = _scanned(node)
    axes = next((list(one.ints) for one in node.attribute if one.name == "scan_input_axes"), [0] * count)
    first = onnx.helper.make_tensor("first", onnx.TensorProto.INT64, [], [0])
    for value, name, axis in zip(body.input[len(body.input) - count :], node.input[-count:], axes, strict=False):
        place = f"{names[value.name]}/place"
        yield onnx.helper.make_node("Constant", [], [place], value=first)
        yield onnx.helper.make_node("Gather", [name, place], [names[value.name]], axis=axis)


def _bound(node: onnx.NodeProto, body: onnx.GraphProto) -> dict[str, str]:
    """Return what the inputs of a body are outside of it: what it carries has the sizes of what it began with.

    The first of a Loop is the number of the pass; the last of a Scan are slices.
    """
    begin, end = node.op_type == "Loop", len(node.input) - _scanned(node)
    return {value.name: name for value, name in zip(body.input[begin:], node.input[begin:end], strict=False) if name}


def _results(node: onnx.NodeProto, body: onnx.GraphProto) -> Iterator[tuple[onnx.ValueInfoProto, str]]:
    """Yield the results of an inner graph with the names that they have outside; of a Loop, those that it carries."""
    if node.op_type == "If":
        yield from zip(body.output, node.output, strict=False)
    elif node.op_type == "Loop":
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
