"""The buffers of a plan are those that ONNX Runtime allocates, node by node, whatever it fuses and writes in place."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper
from support.models import save_model

from ortdeploy.graph import activations
from ortdeploy.graph.activations import plan_buffers
from ortdeploy.graph.model import read_model
from ortdeploy.runtime.machine import probe_machine

BATCH, TOKENS, WIDTH = 64, 16, 128
node = helper.make_node

WEIGHTS = {
    "w": np.ones((WIDTH, WIDTH), np.float32),
    "b": np.ones(WIDTH, np.float32),
    "two": np.array(2, np.float32),
    "root": np.array(2**0.5, np.float32),
    "half": np.array(0.5, np.float32),
    "one": np.array(1, np.float32),
    "k": np.ones((16, 16, 1, 1), np.float32),
    "narrow": np.ones((8, 16, 1, 1), np.float32),
    "wider": np.ones((16, 8, 1, 1), np.float32),
    "channels": np.ones((16, 1, 1), np.float32),
    "scale": np.ones(16, np.float32),
}


def gelu(x: str, y: str) -> list[NodeProto]:
    return [
        node("Div", [x, "root"], ["g1"]),
        node("Erf", ["g1"], ["g2"]),
        node("Add", ["g2", "one"], ["g3"]),
        node("Mul", [x, "g3"], ["g4"]),
        node("Mul", ["g4", "half"], [y]),
    ]


def other_gelu(x: str, y: str) -> list[NodeProto]:
    half = [node("Mul", [x, "half"], ["g0"])]
    return [*half, *gelu(x, y)[:3], node("Mul", ["g0", "g3"], [y])]


def product(x: str, y: str) -> NodeProto:
    return node("MatMul", [x, "w"], [y])


def convolution(x: str, y: str) -> NodeProto:
    return node("Conv", [x, "k"], [y])


BIASED = [product("x", "a"), node("Add", ["a", "b"], ["s"])]
OF_TOKENS, OF_ROWS, OF_IMAGES = (TOKENS, WIDTH), (WIDTH,), (16, 8, 8)


@pytest.mark.parametrize(
    ("nodes", "row"),
    [
        ([*BIASED, product("s", "y")], OF_TOKENS),
        ([*BIASED, product("s", "y")], OF_ROWS),  # one product with a bias
        ([*BIASED, node("Relu", ["s"], ["t"]), node("Add", ["x", "t"], ["u"]), product("u", "y")], OF_ROWS),
        ([*BIASED, *gelu("s", "u"), product("u", "y")], OF_ROWS),
        ([product("x", "s"), *gelu("s", "u"), product("u", "y")], OF_TOKENS),
        ([product("x", "s"), *other_gelu("s", "u"), product("u", "y")], OF_TOKENS),
        ([*BIASED, node("Sigmoid", ["s"], ["t"]), node("Mul", ["s", "t"], ["u"]), product("u", "y")], OF_TOKENS),
        ([*BIASED, node("Sigmoid", ["s"], ["t"]), node("Mul", ["x", "t"], ["u"]), product("u", "y")], OF_TOKENS),
        ([product("x", "a"), node("Div", ["a", "two"], ["s"]), node("Softmax", ["s"], ["t"]), product("t", "y")], OF_TOKENS),
        ([node("Tanh", ["x"], ["a"]), node("Mul", ["a", "two"], ["s"]), product("s", "y")], OF_TOKENS),
        ([product("x", "a"), node("Div", ["two", "a"], ["s"]), product("s", "y")], OF_TOKENS),
        ([product("x", "a"), node("Erf", ["a"], ["s"]), node("Exp", ["s"], ["t"]), product("t", "y")], OF_TOKENS),
        ([node("Tanh", ["x"], ["a"]), node("BatchNormalization", ["a", *["scale"] * 4], ["s"]), node("Tanh", ["s"], ["y"])], OF_IMAGES),
        ([convolution("x", "a"), node("BatchNormalization", ["a", *["scale"] * 4], ["s"]), node("Add", ["s", "channels"], ["t"]), node("Relu", ["t"], ["u"]), node("GlobalAveragePool", ["u"], ["y"])], OF_IMAGES),
        ([node("Conv", ["x", "narrow"], ["a"]), node("Relu", ["a"], ["s"]), node("Conv", ["s", "wider"], ["y"])], OF_IMAGES),
    ],
)  # fmt: skip
def test_a_plan_has_the_buffers_that_onnx_runtime_allocates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Sequence[NodeProto], row: Sequence[int]
) -> None:
    if {"avx", "avx512f"}.intersection(probe_machine().cpu_flags) == {"avx"}:
        monkeypatch.setattr(activations, "_CHANNEL_BLOCK", 8)  # else blocks of 16, which a plan counts everywhere
    path = saved(tmp_path, nodes, row)
    buffers = plan_buffers(read_model(path, "m").skeleton, {"x": (BATCH, *row)})
    assert buffers is not None
    assert sum(one.size for one in buffers if not one.is_scratch) == allocations(path, row)


def saved(folder: Path, nodes: Sequence[NodeProto], row: Sequence[int]) -> Path:
    read = {name for one in nodes for name in one.input}
    pooled = (16, 1, 1) if nodes[-1].op_type == "GlobalAveragePool" else row
    return save_model(
        folder / "m.onnx",
        list(nodes),
        {"x": (TensorProto.FLOAT, ["batch", *row])},
        {"y": (TensorProto.FLOAT, ["batch", *pooled])},
        {name: value for name, value in WEIGHTS.items() if name in read},
        opset=17,
    )


def allocations(path: Path, row: Sequence[int]) -> int:
    """Return the bytes that ONNX Runtime allocates for the values of one run."""
    told = path.with_suffix(".csv")
    options = onnxruntime.SessionOptions()
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", str(told))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((BATCH, *row), np.float32)})
    del session
    return sum(int(line.split(",")[3]) for line in told.read_text().splitlines()[1:])
