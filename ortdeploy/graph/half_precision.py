"""Puts float32 in the place of float16 where the CPU has no kernel for it, as ONNX Runtime does.

It casts what such nodes read and make, and leaves out casts to float16 and back (insert_cast_transformer.cc). A graph
of half-precision weights so takes as much memory as one of single precision, beside casts of inputs and outputs.
"""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

import onnx
from onnx import TensorProto, helper

Types = Mapping[str, onnx.TypeProto]


def in_single_precision(
    graph: onnx.GraphProto, types: Types, operators: Collection[str]
) -> tuple[onnx.GraphProto, Types]:
    """Return a graph where nodes of some operators compute in float32, and the types of its values.

    The operators are `domain.operator`.
    """
    halves = {name for name, kind in types.items() if kind.tensor_type.elem_type == TensorProto.FLOAT16}
    if not halves or not operators:
        return graph, types
    casts = _Casts(graph, types, halves)
    for node in graph.node:
        casts.take(node, in_float=f"{node.domain or 'ai.onnx'}.{node.op_type}" in operators)
    for value in graph.output:
        casts.to_half(value.name)
    return casts.made, casts.types


class _Casts:
    """The graph that is made: which values are there in float32, and which in float32 alone."""

    def __init__(self, graph: onnx.GraphProto, types: Types, halves: AbstractSet[str]) -> None:
        self.made = onnx.GraphProto(output=graph.output)
        self.types = dict(types)
        self._halves = halves
        self._singles: dict[str, str] = {}
        self._without_half: set[str] = set()

    def take(self, node: onnx.NodeProto, *, in_float: bool) -> None:
        """Add a node, with the casts of what it reads; `in_float`: its float16 becomes float32."""
        node = _copy(node)
        read = [name for name in node.input if name in self._halves]
        if in_float and not self._halves.isdisjoint((*node.input, *node.output)):
            node.input[:] = [self._to_single(name) if name in self._halves else name for name in node.input]
            node.output[:] = [self._made_as_single(name) if name in self._halves else name for name in node.output]
        elif node.op_type == "Cast" and read and read[0] in self._without_half and self._is_single(node.output[0]):
            node = helper.make_node("Identity", [self._singles[read[0]]], node.output)  # from float32 and back
        else:
            for name in read:
                self.to_half(name)
            if node.op_type == "Cast" and node.output[0] in self._halves and self._is_single(node.input[0]):
                self._singles[node.output[0]] = node.input[0]
        self.made.node.append(node)

    def to_half(self, name: str) -> None:
        """Make a value in float16 if it is there in float32 alone."""
        if name in self._without_half:
            self._without_half.discard(name)
            self.made.node.append(helper.make_node("Cast", [self._singles[name]], [name], to=TensorProto.FLOAT16))

    def _to_single(self, name: str) -> str:
        if name not in self._singles:
            single = self._name_single(name)
            self.made.node.append(helper.make_node("Cast", [name], [single], to=TensorProto.FLOAT))
        return self._singles[name]

    def _made_as_single(self, name: str) -> str:
        self._without_half.add(name)
        return self._name_single(name)

    def _name_single(self, name: str) -> str:
        single = self._singles[name] = f"{name} in float32"
        kind = onnx.TypeProto()
        kind.CopyFrom(self.types[name])
        kind.tensor_type.elem_type = TensorProto.FLOAT
        self.types[single] = kind
        return single

    def _is_single(self, name: str) -> bool:
        kind = self.types.get(name)
        return kind is not None and kind.tensor_type.elem_type == TensorProto.FLOAT


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
