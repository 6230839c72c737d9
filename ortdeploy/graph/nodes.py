"""Reads the nodes of a model's graph with the element types by which kernels are chosen.

Types come from onnx's own shape inference, run on a copy without weights; parameters are bound as the operator's schema
names them. If something is not known, nothing is bound, and a kernel is assumed to fit.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import onnx
import onnx.inliner
from msgspec.structs import replace

from ortdeploy.facts.models import NodeFacts
from ortdeploy.graph.size_nodes import nodes_of_sizes, small_constants
from ortdeploy.graph.walk import own_graphs

_BIG = 1024  # bytes of a constant that shape inference does not need to see
_WIDE = 2**31
_SHORT = 40  # signs of an attribute that is text
_FOLDED = {("ai.onnx", "Constant")}
_ELEMENT_NAMES: dict[int, str] = {
    number: name.lower() for name, number in onnx.TensorProto.DataType.items() if name != "UNDEFINED"
}

_TENSORS = {f"tensor({name})": number for number, name in _ELEMENT_NAMES.items()}

Types = dict[str, str]


def drop_weights(graph: onnx.GraphProto) -> None:
    """Replace big constants by inputs of their type: shape inference copies what it is given.

    Those in nodes and in inner graphs, which can have no inputs, become Constant nodes of their type without values.
    """
    small = []
    for tensor in graph.initializer:
        if _is_big(tensor):
            if all(value.name != tensor.name for value in graph.input):
                graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            small.append(tensor)
    del graph.initializer[:]
    graph.initializer.extend(small)
    _drop_from_nodes(graph)


def _drop_from_nodes(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for inner in own_graphs(node):
            _drop_from_inner(inner)
        value = next((one.t for one in node.attribute if node.op_type == "Constant" and one.name == "value"), None)
        if value is not None and _is_big(value):
            node.CopyFrom(_without_values(value, node.output[0]))


def _drop_from_inner(graph: onnx.GraphProto) -> None:
    constants = [_without_values(tensor, tensor.name) for tensor in graph.initializer if _is_big(tensor)]
    if constants:
        nodes, small = list(graph.node), [tensor for tensor in graph.initializer if not _is_big(tensor)]
        del graph.node[:], graph.initializer[:]
        graph.node.extend((*constants, *nodes))
        graph.initializer.extend(small)
    _drop_from_nodes(graph)


def _is_big(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.ByteSize() > _BIG


def _without_values(tensor: onnx.TensorProto, name: str) -> onnx.NodeProto:
    """Return a Constant of a tensor's type and sizes that holds none of its values: a sparse tensor of zeros."""
    empty = onnx.helper.make_sparse_tensor(
        onnx.TensorProto(name=name, data_type=tensor.data_type, dims=[0]),
        onnx.TensorProto(data_type=onnx.TensorProto.INT64, dims=[0]),
        tensor.dims,
    )
    return onnx.helper.make_node("Constant", [], [name], sparse_value=empty)


def weight_sizes(skeleton: bytes) -> tuple[int, ...]:
    """Return the sizes that the constants of a model without its weights have, each once, those of first layers first.

    A dimension that a graph leaves open may have to be one of them.
    """
    graph = onnx.ModelProto.FromString(skeleton).graph
    small = (size for tensor in graph.initializer for size in tensor.dims)
    big = (dim.dim_value for value in graph.input for dim in value.type.tensor_type.shape.dim)
    return tuple(dict.fromkeys(size for size in (*big, *small) if size > 1))


def is_sound(model: onnx.ModelProto) -> bool:
    """Return whether shape inference may see a model: it crashes on some that onnx's checker refuses.

    LayerNormalization with an axis beyond 32 bits is accepted and crashes it (onnx 1.23.2).
    """
    try:
        onnx.checker.check_model(model)
    except Exception:  # noqa: BLE001  the checker raises what it likes
        return False
    return not any(abs(attribute.i) >= _WIDE for node in model.graph.node for attribute in node.attribute)


class NodesRead(NamedTuple):
    """The nodes of a graph and of inner graphs, in order, the values whose rank is not known, and inferred outputs."""

    nodes: tuple[NodeFacts, ...]
    unranked: tuple[str, ...]
    outputs: Mapping[str, onnx.TypeProto]


def read_nodes(model: onnx.ModelProto, *, infer: bool = True) -> NodesRead:
    """Read the nodes of a graph; `outputs` have the types that its nodes give them, whatever the graph says."""
    domains = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    functions = {(function.domain or "ai.onnx", function.name) for function in model.functions}
    outputs: Mapping[str, onnx.TypeProto] = {}
    if infer:
        with suppress(Exception):  # inference raises what it likes; without it fewer types are known
            model, outputs = _inferred(model)
    nodes = (*_nodes(model.graph, {}, domains, functions), *_function_nodes(model, functions))
    return NodesRead(nodes, tuple(_unranked(model.graph)), outputs)


def _inferred(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Mapping[str, onnx.TypeProto]]:
    """Return a model with inferred shapes, and those of its outputs without what the graph says of them."""
    open_outputs = onnx.ModelProto()
    open_outputs.CopyFrom(model)
    for value in open_outputs.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(open_outputs)
    outputs: dict[str, onnx.TypeProto] = {}
    for value, written in zip(inferred.graph.output, model.graph.output, strict=True):
        outputs[_text(value.name)] = onnx.TypeProto.FromString(value.type.SerializeToString())
        value.CopyFrom(written)
    return inferred, outputs


def _function_nodes(model: onnx.ModelProto, functions: set[tuple[str, str]]) -> Iterator[NodeFacts]:
    """Yield the nodes of the model's own functions that are called; their types are the caller's, and not known."""
    bodies = {(function.domain or "ai.onnx", function.name): function for function in model.functions}
    waiting = list(_called(model.graph, {})) if bodies else []
    while waiting:
        function = bodies.pop(waiting.pop(), None)
        if function is not None:
            domains = {opset.domain or "ai.onnx": opset.version for opset in function.opset_import}
            graph = onnx.GraphProto(node=function.node)
            yield from _nodes(graph, {}, domains, functions)
            waiting += _called(graph, domains)


def _called(graph: onnx.GraphProto, domains: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    yield from ((node.domain, node.operator) for node in _nodes(graph, {}, domains, set()))


def _unranked(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the values of the outer graph whose rank inference did not find."""
    known = {
        value.name
        for value in (*graph.value_info, *graph.output)
        if value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.HasField("shape")
    }
    yield from (_text(name) for node in graph.node for name in node.output if name and name not in known)


def _text(value: str | bytes) -> str:
    """Return a name of the file as text; protobuf gives those that are not UTF-8 as they are."""
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")


def _nodes(
    graph: onnx.GraphProto,
    outer: Types,
    domains: Mapping[str, int],
    functions: set[tuple[str, str]],
    outer_small: frozenset[str] = frozenset(),
) -> Iterator[NodeFacts]:
    types = outer | _types(graph)
    small = outer_small.union(small_constants(graph))
    of_sizes = nodes_of_sizes(graph, small)
    for place, node in enumerate(graph.node):
        domain = _text(node.domain) or "ai.onnx"
        if (domain, node.op_type) not in _FOLDED:
            facts = _node(node, domain, domains, types, functions)
            yield replace(facts, of_sizes=True) if place in of_sizes else facts
        for inner in own_graphs(node):
            yield from _nodes(inner, types, domains, functions, small)


def _node(
    node: onnx.NodeProto, domain: str, domains: Mapping[str, int], types: Types, functions: set[tuple[str, str]]
) -> NodeFacts:
    version, operator, name = domains.get(domain, 1), _text(node.op_type), _text(node.name)
    try:
        schema = onnx.defs.get_schema(operator, version, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        local = (domain, operator) in functions
        return NodeFacts(name=name, domain=domain, operator=operator, since=version, local=local)
    bound = _bind(node.output, schema.outputs, types) | _bind(node.input, schema.inputs, types)
    expandable = _is_expandable(schema, version)
    return NodeFacts(
        name=name,
        domain=domain,
        operator=operator,
        since=schema.since_version,
        types=bound,
        attributes={attribute.name: _attribute_text(attribute) for attribute in node.attribute},
        expandable=expandable,
        body=_body(node, version, types) if expandable and domain == "ai.onnx" else (),
    )


def _is_expandable(schema: Any, opset: int) -> bool:
    """Return whether ONNX Runtime can put a function's body into a model of an operator set.

    Not where an operator of the body has another version there (onnx's OpSchema::ValidateReferencedOpsInFuncBody):
    Swish of set 24 is made of CastLike 24, so a model of set 28 needs a kernel for it. `schema` is an OpSchema, whose
    functions onnx's type information leaves out.
    """
    if schema.has_context_dependent_function or not schema.has_function:
        return bool(schema.has_context_dependent_function)
    written = max((one for one in schema.function_opset_versions if one <= opset), default=None)
    if schema.domain or written is None:
        return True
    body = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(written))
    inner = {node.op_type for node in body.node if not node.domain}
    return all(_version(operator, written) == _version(operator, opset) for operator in inner)


def _version(operator: str, opset: int) -> int | None:
    try:
        return onnx.defs.get_schema(operator, opset, "").since_version
    except onnx.defs.SchemaError:
        return None


def _body(node: onnx.NodeProto, opset: int, types: Types) -> tuple[NodeFacts, ...]:
    """Return the nodes of an operator's function, for the types of its inputs; none if these are not all known."""
    kinds = tuple(types.get(name, "") if name else None for name in node.input)
    if any(kind is not None and kind not in _TENSORS for kind in kinds):
        return ()
    call = onnx.NodeProto(
        op_type=node.op_type, attribute=node.attribute, output=[f"y{i}" for i in range(len(node.output))]
    )
    return _inlined(call.SerializeToString(deterministic=True), opset, kinds)


@lru_cache(maxsize=1024)
def _inlined(call: bytes, opset: int, kinds: tuple[str | None, ...]) -> tuple[NodeFacts, ...]:
    """Inline one call of an operator; models call few operators with few types, many times."""
    node = onnx.NodeProto.FromString(call)
    node.input.extend("" if kind is None else f"x{index}" for index, kind in enumerate(kinds))
    graph = onnx.GraphProto(name="call", node=[node])
    for index, kind in enumerate(kinds):
        if kind is not None:
            graph.input.add(name=f"x{index}").type.tensor_type.elem_type = _TENSORS[kind]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
    model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=[onnx.OperatorSetIdProto(version=opset)])
    with suppress(Exception):  # onnx raises what it likes; without the body nothing is said of it
        model = onnx.inliner.inline_selected_functions(model, [("", node.op_type)], inline_schema_functions=True)
        model = onnx.shape_inference.infer_shapes(model)
    if any(inner.op_type == node.op_type for inner in model.graph.node):
        return ()
    return tuple(_nodes(model.graph, {}, {"ai.onnx": opset}, set()))


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    if attribute.type == onnx.AttributeProto.INT:
        return str(attribute.i)
    short = attribute.type == onnx.AttributeProto.STRING and len(attribute.s) <= _SHORT
    return attribute.s.decode("utf-8", errors="replace") if short else ""


def _bind(names: Sequence[str], parameters: Sequence[onnx.defs.OpSchema.FormalParameter], types: Types) -> Types:
    """Return the types of formal parameters, by their own names and by those of their type parameters."""
    bound: Types = {}
    for index, name in enumerate(names if parameters else ()):
        parameter = parameters[min(index, len(parameters) - 1)]
        if name in types:
            bound.setdefault(parameter.type_str, types[name])
            bound.setdefault(parameter.name, types[name])
    return bound


def _types(graph: onnx.GraphProto) -> Types:
    types: Types = {}
    for tensor in graph.initializer:
        if tensor.data_type in _ELEMENT_NAMES:
            types[tensor.name] = f"tensor({_ELEMENT_NAMES[tensor.data_type]})"
    for value in (*graph.input, *graph.value_info, *graph.output):
        text = _type_text(value.type)
        if text is not None:
            types[value.name] = text
    return types


def _type_text(kind: onnx.TypeProto) -> str | None:
    """Write a type the way kernel definitions do; None if a part of it is not known."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return _wrapped("tensor", _ELEMENT_NAMES.get(kind.tensor_type.elem_type))
        case "sparse_tensor_type":
            return _wrapped("sparse_tensor", _ELEMENT_NAMES.get(kind.sparse_tensor_type.elem_type))
        case "sequence_type":
            return _wrapped("seq", _type_text(kind.sequence_type.elem_type))
        case "optional_type":
            return _wrapped("optional", _type_text(kind.optional_type.elem_type))
        case "map_type":
            key, value = _ELEMENT_NAMES.get(kind.map_type.key_type), _type_text(kind.map_type.value_type)
            return f"map({key},{value})" if key and value else None
    return None


def _wrapped(word: str, inner: str | None) -> str | None:
    return f"{word}({inner})" if inner else None
