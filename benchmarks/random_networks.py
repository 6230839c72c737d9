"""Draws networks of many kinds and sizes, and jobs over them, from a seed: cases that no forecast was fitted to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper, save
from pyarrow import parquet

OPSET = 17
MOST_ACTIVATIONS = 96 * 1024 * 1024  # bytes of the largest value of a run
MOST_COMPUTED = 6e10  # multiplications of a job
FEWEST_BATCHES, MOST_BATCHES = 4, 12

Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One job: its network's kind and file, how rows are read and written, and what the manifest says beside that."""

    name: str
    row: tuple[int, ...]
    rows: int
    batch: int
    read: str
    written: str
    rows_per_part: int
    sessions: str


@dataclass
class _Network:
    """A network that grows node by node, with what its largest value and all its products take a row."""

    random: Random
    holder: str
    nodes: list[NodeProto] = field(default_factory=list)
    weights: dict[str, "np.ndarray[Any, Any]"] = field(default_factory=dict)
    largest: float = 0
    computed: float = 0

    def add(self, operator: str, inputs: Sequence[str], elements: float, **attributes: Any) -> str:
        """Add a node of one output of so many elements a row; return the output's name."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        self.largest = max(self.largest, 4 * elements)
        return name

    def weight(self, *shape: int) -> str:
        """Add random weights of a shape."""
        fan = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]  # of filters, all but the first
        return self.constant((self.random.standard_normal(shape) / fan**0.5).astype(np.float32))

    def constant(self, value: "np.ndarray[Any, Any]") -> str:
        """Add an initializer; return its name."""
        name = f"w{len(self.weights)}"
        self.weights[name] = value
        return name

    def dense(self, x: str, taken: int, given: int, rows: int = 1) -> str:
        """Multiply the last axis with a matrix and add a bias."""
        self.computed += rows * taken * given
        product = self.add("MatMul", [x, self.weight(taken, given)], rows * given)
        return self.add("Add", [product, self.weight(given)], rows * given)

    def graph(self, x: str, row: Sequence[int], y: str, given: Sequence[int]) -> GraphProto:
        """Return the graph: weights are initializers, Constant nodes, or in both branches of an If."""
        nodes, initializers = list(self.nodes), [numpy_helper.from_array(v, n) for n, v in self.weights.items()]
        if self.holder == "Constant nodes":
            nodes[:0] = [helper.make_node("Constant", [], [one.name], value=one) for one in initializers]
            initializers = []
        if self.holder == "branches":
            nodes, initializers = self._in_branches(nodes, initializers, x, y, given), []
        values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *row])]
        results = [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", *given])]
        return helper.make_graph(nodes, "drawn", values, results, initializers)

    @staticmethod
    def _in_branches(
        nodes: list[NodeProto], weights: list[TensorProto], x: str, y: str, given: Sequence[int]
    ) -> list[NodeProto]:
        """Return nodes that run the network unless a sum of its inputs is no number, and give zeros otherwise."""
        inside = helper.make_graph(
            nodes, "network", [], [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", *given])], weights
        )
        inside.node[-1].output[0] = inside.output[0].name = "then_y"
        zeros = [helper.make_tensor_value_info("else_y", TensorProto.FLOAT, ["batch", *given])]
        other = helper.make_graph([helper.make_node("ConstantOfShape", ["shape"], ["else_y"])], "zeros", [], zeros)
        row = numpy_helper.from_array(np.array(given, dtype=np.int64))
        return [
            helper.make_node("Shape", [x], ["rows"], start=0, end=1),
            helper.make_node("Constant", [], ["row"], value=row),
            helper.make_node("Concat", ["rows", "row"], ["shape"], axis=0),
            helper.make_node("ReduceSum", [x], ["sum"], keepdims=0),
            helper.make_node("IsNaN", ["sum"], ["broken"]),
            helper.make_node("Not", ["broken"], ["whole"]),
            helper.make_node("If", ["whole"], [y], then_branch=inside, else_branch=other),
        ]


Drawn = tuple[tuple[int, ...], str, tuple[int, ...]]
"""The shape of a row, the name of the result, the shape of its rows."""


def _choose(random: Random, *among: Any) -> Any:
    return among[int(random.integers(len(among)))]


def _between(random: Random, low: float, high: float) -> int:
    """Draw evenly in the logarithm: as many small numbers as large ones."""
    return int(np.exp(random.uniform(np.log(low), np.log(high + 1))))


def _activated(net: _Network, x: str, elements: float) -> str:
    kind = _choose(net.random, "Relu", "Tanh", "Sigmoid", "LeakyRelu", "swish")
    if kind != "swish":
        return net.add(kind, [x], elements)
    return net.add("Mul", [x, net.add("Sigmoid", [x], elements)], elements)


def _convolved(net: _Network, x: str, taken: int, given: int, size: int, *, kernel: int, stride: int = 1) -> str:
    pad = kernel // 2
    after = (size + 2 * pad - kernel) // stride + 1
    net.computed += after**2 * taken * given * kernel**2
    weights = [net.weight(given, taken, kernel, kernel), net.weight(given)]
    return net.add("Conv", [x, *weights], given * after**2, pads=[pad] * 4, strides=[stride] * 2)


def convolutional(net: _Network) -> Drawn:
    """Convolutions and pooling over pictures, and a product at the end."""
    random = net.random
    channels, size = _choose(random, 1, 3, 4), _between(random, 16, 128)
    row, x, taken = (channels, size, size), "x", channels
    for _ in range(int(random.integers(2, 7))):
        given, stride = 4 * _between(random, 2, 32), _choose(random, 1, 1, 2) if size > 8 else 1
        x = _convolved(net, x, taken, given, size, kernel=_choose(random, 1, 3, 3, 5), stride=stride)
        size, taken = (size - 1) // stride + 1, given
        if random.random() < 0.3:
            scales = [net.weight(taken), net.weight(taken), net.weight(taken)]
            scales.append(net.constant(np.ones(taken, np.float32)))
            x = net.add("BatchNormalization", [x, *scales], taken * size**2)
        x = _activated(net, x, taken * size**2)
        if size > 16 and random.random() < 0.3:
            size //= 2
            x = net.add("MaxPool", [x], taken * size**2, kernel_shape=[2, 2], strides=[2, 2])
    if random.random() < 0.3:
        return row, x, (taken, size, size)
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x], taken)], taken)
    return row, net.dense(x, taken, 10), (10,)


def recurrent(net: _Network) -> Drawn:
    """LSTM or GRU layers over a sequence."""
    random = net.random
    steps, width = _between(random, 8, 128), 8 * _between(random, 2, 32)
    row = (steps, width)
    x = net.add("Transpose", ["x"], steps * width, perm=[1, 0, 2])
    for _ in range(int(random.integers(1, 4))):
        hidden, (operator, gates) = 8 * _between(random, 2, 48), _choose(random, ("LSTM", 4), ("GRU", 3))
        ways = _choose(random, 1, 2)
        weights = [net.weight(ways, gates * hidden, width), net.weight(ways, gates * hidden, hidden)]
        weights.append(net.weight(ways, 2 * gates * hidden))
        direction = "forward" if ways == 1 else "bidirectional"
        net.computed += steps * ways * gates * hidden * (width + hidden)
        x = net.add(
            operator, [x, *weights], steps * ways * hidden * (1 + gates), hidden_size=hidden, direction=direction
        )
        x = net.add("Transpose", [x], steps * ways * hidden, perm=[0, 2, 1, 3])
        width = ways * hidden
        x = net.add("Reshape", [x, net.constant(np.array([steps, -1, width]))], steps * width)
    x = net.add("Transpose", [x], steps * width, perm=[1, 0, 2])
    if random.random() < 0.5:
        return row, x, (steps, width)
    x = net.add("ReduceMean", [x], width, axes=[1], keepdims=0)
    return row, net.dense(x, width, 12), (12,)


def _normalized(net: _Network, x: str, tokens: int, width: int) -> str:
    ones = [net.constant(np.ones(width, np.float32)), net.constant(np.zeros(width, np.float32))]
    return net.add("LayerNormalization", [x, *ones], tokens * width, axis=-1)


def _gelu(net: _Network, x: str, elements: float) -> str:
    scaled = net.add("Div", [x, net.constant(np.array(2**0.5, np.float32))], elements)
    erf = net.add("Add", [net.add("Erf", [scaled], elements), net.constant(np.array(1, np.float32))], elements)
    return net.add("Mul", [net.add("Mul", [x, erf], elements), net.constant(np.array(0.5, np.float32))], elements)


def _attended(net: _Network, x: str, tokens: int, heads: int, width: int) -> str:
    each, split = width // heads, net.constant(np.array([0, 0, heads, width // heads]))
    query, key, value = (
        net.add(
            "Transpose",
            [net.add("Reshape", [net.dense(x, width, width, tokens), split], tokens * width)],
            tokens * width,
            perm=perm,
        )
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    net.computed += 2 * tokens**2 * width
    scores = net.add("MatMul", [query, key], heads * tokens**2)
    scores = net.add("Div", [scores, net.constant(np.array(each**0.5, np.float32))], heads * tokens**2)
    shares = net.add("Softmax", [scores], heads * tokens**2, axis=-1)
    mixed = net.add(
        "Transpose", [net.add("MatMul", [shares, value], tokens * width)], tokens * width, perm=[0, 2, 1, 3]
    )
    joined = net.add("Reshape", [mixed, net.constant(np.array([0, 0, width]))], tokens * width)
    return net.dense(joined, width, width, tokens)


def attention(net: _Network) -> Drawn:
    """Blocks of attention with several heads and a feed-forward part, normalised before each."""
    random = net.random
    tokens, heads = _between(random, 16, 256), _choose(random, 1, 2, 4, 8)
    width, wider = heads * 8 * _between(random, 2, 8), _choose(random, 2, 4)
    x = "x"
    for _ in range(int(random.integers(1, 5))):
        x = net.add(
            "Add", [x, _attended(net, _normalized(net, x, tokens, width), tokens, heads, width)], tokens * width
        )
        inner = net.dense(_normalized(net, x, tokens, width), width, wider * width, tokens)
        inner = (
            _gelu(net, inner, tokens * wider * width)
            if random.random() < 0.5
            else net.add("Relu", [inner], tokens * wider * width)
        )
        x = net.add("Add", [x, net.dense(inner, wider * width, width, tokens)], tokens * width)
    if random.random() < 0.3:
        return (tokens, width), x, (tokens, width)
    return (tokens, width), net.add("ReduceMean", [x], width, axes=[1], keepdims=0), (width,)


def wide(net: _Network) -> Drawn:
    """Few layers of many units."""
    taken = first = _between(net.random, 64, 1024)
    x = "x"
    for _ in range(int(net.random.integers(1, 4))):
        given = _between(net.random, 512, 4096)
        x = _activated(net, net.dense(x, taken, given), given)
        taken = given
    last = _between(net.random, 4, 1024)
    return (first,), net.dense(x, taken, last), (last,)


def deep(net: _Network) -> Drawn:
    """Many layers, with what went in before added every other time."""
    width, x = _between(net.random, 32, 512), "x"
    for _ in range(_between(net.random, 10, 60)):
        y = _activated(net, net.dense(x, width, width), width)
        x = net.add("Add", [x, y], width) if net.random.random() < 0.5 else y
    return (width,), net.dense(x, width, 8), (8,)


def branching(net: _Network) -> Drawn:
    """Layers of several branches each, which are joined side by side."""
    taken = first = _between(net.random, 32, 512)
    x = "x"
    for _ in range(int(net.random.integers(1, 5))):
        parts, total = [], 0
        for _ in range(int(net.random.integers(2, 6))):
            given = _between(net.random, 16, 512)
            y = net.dense(x, taken, given)
            parts.append(_activated(net, y, given) if net.random.random() < 0.7 else y)
            total += given
        x, taken = net.add("Concat", parts, total, axis=1), total
    return (first,), net.dense(x, taken, 6), (6,)


KINDS: Sequence[Callable[[_Network], Drawn]] = (convolutional, recurrent, attention, wide, deep, branching)


def draw(random: Random, number: int, folder: Path) -> Case:
    """Draw one case, and save its network as `N.onnx`."""
    kind = KINDS[number % len(KINDS)]
    holder = _choose(random, *["initializers"] * 3, "Constant nodes", "branches")
    net = _Network(random, holder)
    row, y, given = kind(net)
    model = helper.make_model(
        net.graph("x", row, y, given), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
    )
    save(model, str(folder / f"{number}.onnx"))
    most = max(1, min(4096, int(MOST_ACTIVATIONS / net.largest), int(MOST_COMPUTED / net.computed / FEWEST_BATCHES)))
    batch = _between(random, max(most // 64, 1), most)
    most_batches = max(FEWEST_BATCHES, min(MOST_BATCHES, int(MOST_COMPUTED / net.computed / batch)))
    rows = int(batch * random.uniform(FEWEST_BATCHES, most_batches))
    table = len(given) == 1
    return Case(
        name=f"{kind.__name__}, weights in {holder}",
        row=row,
        rows=rows,
        batch=batch,
        read=_choose(random, "npy", "npy", "parquet") if len(row) == 1 else "npy",
        written=_choose(random, "npy", "npz", "parquet", "arrow", *(["jsonl", "csv"] if table else [])),
        rows_per_part=_choose(random, rows, max(rows // 3, 1), 100_000),
        sessions=_choose(
            random,
            "",
            "",
            ", session: {intra_op_num_threads: 1}",
            ", sessions: [{name: cpu, providers: [CPU], count: 2}]",
        ),
    )


def save_rows(path: Path, case: Case) -> None:
    """Write the rows of a case: float32, from zero to one, as an array or as a table of lists."""
    rows = np.random.default_rng(case.rows).random((case.rows, *case.row), dtype=np.float32)
    if case.read == "npy":
        np.save(path, rows)
        return
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), case.row[0])})
    parquet.write_table(table, path, row_group_size=max(case.rows // 4, 1))
