"""Changes the graph of a model: op steps before and behind its own nodes, shapes of inputs. Weights are not touched."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from msgspec.structs import replace
from onnx import helper

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.opening import regular_path
from ortdeploy.graph.declared_inputs import give_shapes
from ortdeploy.graph.op_model import ONNX, onnx_domain, op_node, op_tensor, op_value_info
from ortdeploy.plan.op_graph import Fusion, OpGraph, OpNode
from ortdeploy.tensors.types import Shape


def changed_model(path: Path, fusion: Fusion | None, shapes: Mapping[str, Shape]) -> onnx.ModelProto:
    """Return the model of a file with op steps in its graph, and other shapes of inputs. Raises OrtdeployError.

    External data stays where it lies.
    """
    model = onnx.load(regular_path(str(path)), load_external_data=False)
    if shapes:
        give_shapes(model, shapes)
    if fusion is not None:
        _fuse(model, fusion)
    return model


def _fuse(model: onnx.ModelProto, fusion: Fusion) -> None:
    """Put op steps into a model. Raises OrtdeployError.

    Values of op steps, and what the graph takes, are called `$name`; the outputs of the model keep their names.
    """
    graph = model.graph
    graphs = [one for one in (fusion.before, fusion.after) if one is not None]
    taken = [*(value.name for value in graph.input), *(name for node in graph.node for name in node.output)]
    clash = next((name for name in taken if name.startswith("$")), None)
    if clash is not None:
        raise OrtdeployError(f"op steps cannot be fused into a model with a value called {clash}")
    opsets = _opsets(model, graphs)
    types = {value.name: op_value_info(value, _named(value.name)) for one in graphs for value in one.inputs}
    ports = {value.name: value for value in graph.input}
    for port, name in fusion.takes:
        types.setdefault(name, _renamed(ports[port], name))
    results = {value.name: value for value in graph.output}
    given = {name: output for output, name in fusion.gives}
    nodes = [
        *_nodes(fusion.before, opsets, {}),
        *(helper.make_node("Identity", [_named(name)], [port], f"to {port}") for port, name in fusion.takes),
        *graph.node,
        *_nodes(fusion.after, opsets, given),
    ]
    fed = {port for port, _ in fusion.takes}
    kept = [value for value in graph.input if value.name not in fed]
    constants = [op_tensor(replace(one, name=_named(one.name))) for graph_ in graphs for one in graph_.constants]
    for field, values in (
        ("node", nodes),
        ("input", [*(types[name] for name in fusion.inputs), *kept]),
        ("output", [results[given[name]] if name in given else _untyped(name) for name in fusion.outputs]),
        ("initializer", [*graph.initializer, *constants]),
    ):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)


def _named(value: str) -> str:
    return f"${value}"


def _untyped(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=_named(name))


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    made = onnx.ValueInfoProto()
    made.CopyFrom(value)
    made.name = _named(name)
    return made


def _opsets(model: onnx.ModelProto, graphs: list[OpGraph]) -> Mapping[str, int]:
    """Return the model's operator sets, with those that only op steps need added to it."""
    own = {one.domain or ONNX: one.version for one in model.opset_import}
    for domain, version in ((domain, version) for graph in graphs for domain, version in graph.opsets.items()):
        if domain not in own:
            model.opset_import.append(helper.make_opsetid(onnx_domain(domain), version))
            own[domain] = version
    return own


def _nodes(graph: OpGraph | None, opsets: Mapping[str, int], given: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of op steps; `given` are values by name that outputs of the model are."""
    for node in graph.nodes if graph is not None else ():
        yield op_node(_with_names(node, given), opsets)


def _with_names(node: OpNode, given: Mapping[str, str]) -> OpNode:
    return replace(
        node,
        inputs=tuple(given.get(name) or (_named(name) if name else "") for name in node.inputs),
        outputs=tuple(_named(name) if name else "" for name in node.outputs),
    )
