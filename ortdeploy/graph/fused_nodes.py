"""Fuses nodes as ONNX Runtime's graph optimizer does, if that decides which values have memory of their own.

Seen on onnxruntime 1.31.1, by what each node allocates (`session.collect_node_memory_stats_to_file`), and compared with
the versions of `versions.TESTED_WITH`; of another version, findings that rest on it are assumed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

import onnx
from onnx import helper

Types = Mapping[str, onnx.TypeProto]

_Fused = tuple[Sequence[onnx.NodeProto], onnx.NodeProto]
"""Nodes, and the one that takes their place."""

_SCALES = ("Div", "Mul")
_OF_FILTERS = ("Add", "BatchNormalization", "Mul")
"""What is folded into the filters and the bias of the convolution before it."""

_MATRIX = 2
_PAIR = 2


def with_fused_nodes(graph: onnx.GraphProto, types: Types, computed: Collection[str]) -> onnx.GraphProto:
    """Return a graph with fused nodes, behind all others if ONNX Runtime orders them so.

    `computed` are the values that depend on what is fed; all others are constants.
    """
    for find in (_gemms, _convolutions, _gelus, _quick_gelus, _scaled_products):
        while found := _apart(find(_View(graph, types, computed))):
            graph = _replaced(graph, found)
    return graph


class _View:
    """A graph's values: which nodes make and read them, and which are constants."""

    def __init__(self, graph: onnx.GraphProto, types: Types, computed: Collection[str]) -> None:
        self.nodes = graph.node
        self._types = types
        self._computed = computed
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._results = {value.name for value in graph.output}

    def of(self, *operators: str) -> Iterator[onnx.NodeProto]:
        return (node for node in self.nodes if node.op_type in operators)

    def maker(self, name: str, *operators: str) -> onnx.NodeProto | None:
        """Return the node of one of these operators that makes a value."""
        node = self._makers.get(name)
        return node if node is not None and node.op_type in operators else None

    def reader(self, name: str, *operators: str) -> onnx.NodeProto | None:
        """Return the node that alone reads a value, if it has one of these operators."""
        nodes = self._readers.get(name, [])
        alone = len(nodes) == 1 and name not in self._results
        return nodes[0] if alone and nodes[0].op_type in operators else None

    def is_read_by(self, name: str, nodes: Sequence[onnx.NodeProto]) -> bool:
        """Return whether no other nodes read a value."""
        among = {node.output[0] for node in nodes}
        return name not in self._results and all(node.output[0] in among for node in self._readers.get(name, ()))

    def rank(self, name: str) -> int:
        return len(self._types[name].tensor_type.shape.dim) if name in self._types else -1

    def other(self, node: onnx.NodeProto, name: str) -> str | None:
        """Return what a node of two inputs takes beside a value."""
        others = [one for one in node.input if one != name]
        return others[0] if len(others) == 1 else None

    def beside_constant(self, node: onnx.NodeProto, *, scalar: bool = False) -> str | None:
        """Return what a node of two inputs takes beside a constant; nothing is divided by what is computed."""
        for at, name in enumerate(node.input):
            is_divided = node.op_type == "Div" and at == 0
            is_one = not scalar or self.rank(name) == 0 or self._elements(name) == 1
            if len(node.input) == _PAIR and name not in self._computed and is_one and not is_divided:
                return node.input[not at]
        return None

    def is_folded_into(self, node: onnx.NodeProto, name: str) -> bool:
        """Return whether all that a node takes beside a value are constants."""
        return all(one == name or one not in self._computed for one in node.input) and len(set(node.input)) > 1

    def _elements(self, name: str) -> int | None:
        dims = self._types[name].tensor_type.shape.dim if name in self._types else ()
        return 1 if dims and all(dim.dim_value == 1 for dim in dims) else None


def _gemms(view: _View) -> Iterator[_Fused]:
    """Find products of matrices with a bias."""
    for product in view.of("MatMul"):
        add = view.reader(product.output[0], "Add")
        if add is not None and all(view.rank(name) == _MATRIX for name in product.input):
            bias = view.other(add, product.output[0])
            if bias is not None and view.beside_constant(add) == product.output[0]:
                yield [product, add], helper.make_node("Gemm", [*product.input, bias], add.output)


def _convolutions(view: _View) -> Iterator[_Fused]:
    """Find convolutions with what scales and shifts their channels."""
    for convolution in view.of("Conv"):
        folded = view.reader(convolution.output[0], *_OF_FILTERS)
        if folded is not None and view.is_folded_into(folded, convolution.output[0]):
            made = onnx.NodeProto()
            made.CopyFrom(convolution)
            made.output[:] = folded.output[:1]
            yield [convolution, folded], made


def _gelus(view: _View) -> Iterator[_Fused]:
    """Find x * (1 + erf(x / c)) * 0.5, with the sum that x is if it is one with a bias and nothing else needs it."""
    for erf in view.of("Erf"):
        scale = view.maker(erf.input[0], *_SCALES)
        add = view.reader(erf.output[0], "Add")
        product = add and view.reader(add.output[0], "Mul")
        x = scale and view.beside_constant(scale, scalar=True)
        if scale is None or add is None or product is None or not x or view.reader(scale.output[0], "Erf") is None:
            continue
        half = _half_of(view, product, add.output[0], x)
        if half is None or view.beside_constant(add, scalar=True) != erf.output[0]:
            continue
        nodes = [scale, erf, add, product, half]
        result = half.output if product.output[0] in half.input else product.output
        bias = view.maker(x, "Add")
        summed = bias and view.beside_constant(bias)
        if bias is not None and summed and view.is_read_by(x, nodes):
            yield [bias, *nodes], helper.make_node("BiasGelu", [summed], result)
        else:
            yield nodes, helper.make_node("Gelu", [x], result)


def _half_of(view: _View, product: onnx.NodeProto, sum_: str, x: str) -> onnx.NodeProto | None:
    """Return the node that halves x, or the product."""
    other = view.other(product, sum_)
    if other == x:
        half = view.reader(product.output[0], "Mul")
        return half if half is not None and view.beside_constant(half, scalar=True) == product.output[0] else None
    half = view.maker(other, "Mul") if other else None
    is_sole = half is not None and view.reader(half.output[0], "Mul") is not None
    return half if is_sole and half is not None and view.beside_constant(half, scalar=True) == x else None


def _quick_gelus(view: _View) -> Iterator[_Fused]:
    """Find x * sigmoid(x)."""
    for sigmoid in view.of("Sigmoid"):
        product = view.reader(sigmoid.output[0], "Mul")
        if product is not None and view.other(product, sigmoid.output[0]) == sigmoid.input[0]:
            yield [sigmoid, product], helper.make_node("QuickGelu", sigmoid.input, product.output)


def _scaled_products(view: _View) -> Iterator[_Fused]:
    """Find products of matrices that are scaled by a number, or of which one is."""
    for product in view.of("MatMul"):
        after = view.reader(product.output[0], *_SCALES)
        if after is not None and view.beside_constant(after, scalar=True) == product.output[0]:
            yield [product, after], helper.make_node("MatMul", product.input, after.output)
        for at, name in enumerate(product.input):
            scale = view.maker(name, *_SCALES)
            x = scale and view.beside_constant(scale, scalar=True)
            if scale is not None and x and view.reader(name, "MatMul") is not None:
                taken = [x if one == at else other for one, other in enumerate(product.input)]
                yield [scale, product], helper.make_node("MatMul", taken, product.output)


def _apart(found: Iterator[_Fused]) -> list[_Fused]:
    """Return those that share no node with another before them."""
    kept: list[_Fused] = []
    taken: set[str] = set()
    for nodes, made in found:
        names = {node.output[0] for node in nodes}
        if taken.isdisjoint(names):
            taken |= names
            kept.append((nodes, made))
    return kept


def _replaced(graph: onnx.GraphProto, found: Sequence[_Fused]) -> onnx.GraphProto:
    """Return a graph with fused nodes behind all others; a convolution, which only gets other weights, stays."""
    gone = {node.output[0] for nodes, _ in found for node in nodes}
    stay = {nodes[0].output[0]: made for nodes, made in found if made.op_type == nodes[0].op_type == "Conv"}
    kept = (
        stay.get(node.output[0], node)
        for node in graph.node
        if node.output and (node.output[0] not in gone or node.output[0] in stay)
    )
    added = (made for nodes, made in found if nodes[0].output[0] not in stay)
    return onnx.GraphProto(node=chain(kept, added), output=graph.output)
