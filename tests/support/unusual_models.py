"""Small models of unusual operators, drawn at random, and rows that begin equal: some of the graphs mix rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 4
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Graph:
    """A chain of nodes over x [batch, WIDTH]; `value` is its end, float32 [batch, WIDTH]."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.value = "x"
        self.kinds: list[str] = []
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node, and return its first output."""
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0]

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = self.name()
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def numbers(self, *shape: int) -> str:
        return self.const(self.rng.standard_normal(shape), np.float32)


def _simple(operator: str, **attributes: Any) -> Callable[[Graph], None]:
    def draw(graph: Graph) -> None:
        graph.value = graph.add(operator, graph.value, **attributes)

    return draw


def _scaled(graph: Graph) -> None:
    graph.value = graph.add("Mul", graph.value, graph.numbers(1, WIDTH))


def _product(graph: Graph) -> None:
    graph.value = graph.add("MatMul", graph.value, graph.numbers(WIDTH, WIDTH))


def _gram(graph: Graph) -> None:
    turned = graph.add("Transpose", graph.value, perm=[1, 0])
    graph.value = graph.add("MatMul", graph.add("MatMul", graph.value, turned), graph.value)


def _cumsum(axis: int, **attributes: Any) -> Callable[[Graph], None]:
    def draw(graph: Graph) -> None:
        graph.value = graph.add("CumSum", graph.value, graph.const(axis), **attributes)

    return draw


def _less(reducing: str, axis: int) -> Callable[[Graph], None]:
    def draw(graph: Graph) -> None:
        graph.value = graph.add("Sub", graph.value, graph.add(reducing, graph.value, axes=[axis], keepdims=1))

    return draw


def _batch_norm(training: int) -> Callable[[Graph], None]:
    def draw(graph: Graph) -> None:
        one, nil = graph.const(np.ones(WIDTH), np.float32), graph.const(np.zeros(WIDTH), np.float32)
        graph.value = graph.add(
            "BatchNormalization",
            graph.value,
            one,
            nil,
            nil,
            one,
            outputs=3 if training else 1,
            training_mode=training,
        )

    return draw


def _dynamic_quantization(graph: Graph) -> None:
    names = [graph.name() for _ in range(3)]
    graph.nodes.append(helper.make_node("DynamicQuantizeLinear", [graph.value], names))
    graph.value = graph.add("DequantizeLinear", *names)


def _sorted(axis: int) -> Callable[[Graph], None]:
    def draw(graph: Graph) -> None:
        size = graph.add("Gather", graph.add("Shape", graph.value), graph.const([axis]))
        graph.value = graph.add("TopK", graph.value, size, outputs=2, axis=axis)

    return draw


def _branch(operator: str, over: str, name: str) -> onnx.GraphProto:
    node = helper.make_node(operator, [over], [name])
    return helper.make_graph([node], operator, [], [helper.make_tensor_value_info(name, FLOAT, None)])


def _if_any(threshold: float, *, of_batch: bool) -> Callable[[Graph], None]:
    """If the largest number of the batch is above a threshold, all of it is negated."""

    def draw(graph: Graph) -> None:
        if not of_batch:
            over = graph.add("Greater", graph.value, graph.const(threshold, np.float32))
            graph.value = graph.add("Where", over, graph.add("Neg", graph.value), graph.value)
            return
        largest = graph.add("ReduceMax", graph.value, keepdims=0)
        over = graph.add("Greater", largest, graph.const(threshold, np.float32))
        first, second = graph.name(), graph.name()
        graph.value = graph.add(
            "If",
            over,
            then_branch=_branch("Neg", graph.value, first),
            else_branch=_branch("Identity", graph.value, second),
        )

    return draw


def _scan(axis: int) -> Callable[[Graph], None]:
    """A Scan that adds up: over the rows, or over the columns of each."""

    def draw(graph: Graph) -> None:
        shape = [WIDTH] if axis == 0 else ["batch"]
        infos = [helper.make_tensor_value_info(name, FLOAT, shape) for name in ("before", "item", "after", "out")]
        body = helper.make_graph(
            [helper.make_node("Add", ["before", "item"], ["after"]), helper.make_node("Identity", ["after"], ["out"])],
            "body",
            infos[:2],
            infos[2:],
        )
        first = graph.add(
            "ReduceSum",
            graph.add("Mul", graph.value, graph.const(0, np.float32)),
            graph.const([axis]),
            keepdims=0,
        )
        names = [graph.name(), graph.name()]
        graph.nodes.append(
            helper.make_node(
                "Scan",
                [first, graph.value],
                names,
                num_scan_inputs=1,
                body=body,
                scan_input_axes=[axis],
                scan_output_axes=[axis],
            )
        )
        graph.value = names[1]

    return draw


def _sequence(*, last: bool) -> Callable[[Graph], None]:
    """Rows go through a sequence; the last one is added to all if asked for."""

    def draw(graph: Graph) -> None:
        rows = graph.add("SplitToSequence", graph.value, axis=0, keepdims=1)
        joined = graph.add("ConcatFromSequence", rows, axis=0)
        if last:
            joined = graph.add("Add", joined, graph.add("SequenceAt", rows, graph.const(-1)))
        graph.value = joined

    return draw


def _optional(graph: Graph) -> None:
    graph.value = graph.add("OptionalGetElement", graph.add("Optional", graph.value))


def _function(axis: int) -> Callable[[Graph], None]:
    """A function of the model that takes the largest number along an axis away."""

    def draw(graph: Graph) -> None:
        name = f"less_{axis}"
        if all(one.name != name for one in graph.functions):
            nodes = [
                helper.make_node("ReduceMax", ["a"], ["m"], axes=[axis], keepdims=1),
                helper.make_node("Sub", ["a", "m"], ["b"]),
            ]
            imports = [helper.make_opsetid("", 17)]
            graph.functions.append(helper.make_function("own", name, ["a"], ["b"], nodes, imports))
        graph.value = graph.add(name, graph.value, domain="own")

    return draw


def _first_row(graph: Graph) -> None:
    graph.value = graph.add("Sub", graph.value, graph.add("Gather", graph.value, graph.const([0]), axis=0))


def _turned(axis: int) -> Callable[[Graph], None]:
    def draw(graph: Graph) -> None:
        ends = ([-1], [-(2**31)], [axis], [-1])
        graph.value = graph.add("Slice", graph.value, *map(graph.const, ends))

    return draw


def _times_rows(graph: Graph) -> None:
    rows = graph.add("Gather", graph.add("Shape", graph.value), graph.const(0), axis=0)
    graph.value = graph.add("Mul", graph.value, graph.add("Cast", rows, to=FLOAT))


def _lstm(graph: Graph) -> None:
    """An LSTM for which the rows are steps in time."""
    steps = graph.add("Unsqueeze", graph.value, graph.const([1]))
    weights = graph.numbers(1, 4 * WIDTH, WIDTH), graph.numbers(1, 4 * WIDTH, WIDTH)
    found = graph.add("LSTM", steps, *weights, hidden_size=WIDTH)
    graph.value = graph.add("Reshape", found, graph.const([-1, WIDTH]))


def _squeezed(graph: Graph) -> None:
    """A Squeeze without axes, which takes the rows away too if there is one."""
    wide = graph.add("Unsqueeze", graph.value, graph.const([1]))
    graph.value = graph.add("Squeeze", wide)


def _reshaped(graph: Graph) -> None:
    """A reshape across the batch, there and back by another way."""
    turned = graph.add("Reshape", graph.value, graph.const([WIDTH, -1]))
    graph.value = graph.add("Transpose", turned, perm=[1, 0])


def _as_integers(graph: Graph) -> None:
    whole = graph.add("Cast", graph.add("Round", graph.value), to=INT64)
    graph.value = graph.add("Cast", graph.add("Mul", whole, graph.const(3)), to=FLOAT)


def _in_double(graph: Graph) -> None:
    wide = graph.add("Cast", graph.value, to=TensorProto.DOUBLE)
    graph.value = graph.add("Cast", graph.add("Erf", graph.add("Cast", wide, to=FLOAT)), to=FLOAT)


def _in_half(graph: Graph) -> None:
    half = graph.add("Cast", graph.value, to=TensorProto.FLOAT16)
    graph.value = graph.add("Cast", half, to=FLOAT)


def _scattered(graph: Graph) -> None:
    """The first row gets what the second one of a table has."""
    graph.value = graph.add("ScatterND", graph.value, graph.const([[0]]), graph.numbers(1, WIDTH))


def _argmax(graph: Graph) -> None:
    best = graph.add("ArgMax", graph.value, axis=1, keepdims=0)
    onehot = graph.add("OneHot", best, graph.const(WIDTH), graph.const([0, 1], np.float32))
    graph.value = graph.add("Mul", graph.value, onehot)


def _einsum(equation: str) -> Callable[[Graph], None]:
    def draw(graph: Graph) -> None:
        graph.value = graph.add("Einsum", graph.value, graph.value, equation=equation)

    return draw


BY_ROW: dict[str, Callable[[Graph], None]] = {
    "neg": _simple("Neg"),
    "relu": _simple("Relu"),
    "tanh": _simple("Tanh"),
    "hard sigmoid": _simple("HardSigmoid"),
    "mish": _simple("Softplus"),
    "scaled": _scaled,
    "product": _product,
    "softmax": _simple("Softmax", axis=-1),
    "cumsum": _cumsum(1),
    "less mean": _less("ReduceMean", 1),
    "less log sum": _less("ReduceL2", 1),
    "normalized": _batch_norm(0),
    "sorted": _sorted(1),
    "if": _if_any(0.5, of_batch=False),
    "scan": _scan(1),
    "sequence": _sequence(last=False),
    "optional": _optional,
    "function": _function(1),
    "turned": _turned(1),
    "integers": _as_integers,
    "double": _in_double,
    "half": _in_half,
    "argmax": _argmax,
    "squeezed": _squeezed,
    "einsum": _einsum("bi,bi->bi"),
    "lp": _simple("LpNormalization", axis=1),
}
"""Steps after which each row still depends on itself alone."""

MIXING: dict[str, Callable[[Graph], None]] = {
    "softmax over rows": _simple("Softmax", axis=0),
    "cumsum over rows": _cumsum(0),
    "cumsum from the end": _cumsum(0, reverse=1),
    "less mean of rows": _less("ReduceMean", 0),
    "less largest row": _less("ReduceMax", 0),
    "normalized in training": _batch_norm(1),
    "dynamic quantization": _dynamic_quantization,
    "sorted rows": _sorted(0),
    "if any": _if_any(0.5, of_batch=True),
    "if any is large": _if_any(50.0, of_batch=True),
    "scan over rows": _scan(0),
    "last of a sequence": _sequence(last=True),
    "function over rows": _function(0),
    "first row": _first_row,
    "turned rows": _turned(0),
    "times rows": _times_rows,
    "rows as time": _lstm,
    "reshaped": _reshaped,
    "gram": _gram,
    "scattered": _scattered,
    "einsum over rows": _einsum("bi,ci->bi"),
    "lp over rows": _simple("LpNormalization", axis=0),
}
"""Steps that mix rows, some only where values are large."""


def draw(seed: int) -> Graph:
    """Draw a chain of one to five steps, of which every second one has one that mixes rows."""
    rng = np.random.default_rng(seed)
    graph = Graph(rng)
    kinds = [str(rng.choice(list(BY_ROW))) for _ in range(rng.integers(1, 5))]
    if rng.random() < 0.5:
        kinds.insert(int(rng.integers(0, len(kinds) + 1)), str(rng.choice(list(MIXING))))
    for kind in kinds:
        (BY_ROW.get(kind) or MIXING[kind])(graph)
    graph.kinds = kinds
    return graph


def save(path: Path, graph: Graph, batch: int | str) -> None:
    """Save a drawn graph, x [batch, WIDTH] -> y [batch, WIDTH]."""
    nodes = [*graph.nodes, helper.make_node("Identity", [graph.value], ["y"])]
    infos = [helper.make_tensor_value_info(name, FLOAT, [batch, WIDTH]) for name in ("x", "y")]
    made = helper.make_graph(nodes, "g", infos[:1], infos[1:], graph.weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(made, opset_imports=imports, ir_version=8, functions=graph.functions)
    onnx.save(model, str(path))


def rows(seed: int, count: int) -> np.ndarray:
    """Draw rows, float32 [count, WIDTH]: the first may be equal, or alike; some of the later ones are large."""
    rng = np.random.default_rng([seed, 1])
    data = rng.standard_normal((count, WIDTH)).astype(np.float32)
    equal = int(rng.integers(0, count - 4))
    match rng.integers(0, 5):
        case 0:
            data[:equal] = 0
        case 1:
            data[:equal] = rng.standard_normal(WIDTH)
        case 2:
            data[:equal] = -np.abs(data[:equal])  # behind a Relu, results are equal
        case 3:
            data[:equal] *= np.float32(1e-6)  # results are alike
    if rng.random() < 0.5:
        data[equal:] *= np.float32(rng.choice([10.0, 100.0]))
    return data
