"""What follows from constants alone takes their place when a graph is opened."""

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from support.models import loop_body, save_model

from ortdeploy.facts.models import FoldedConstants
from ortdeploy.graph.folding import folded_constants
from ortdeploy.graph.model import read_model

FLOAT = TensorProto.FLOAT
WIDTH = 64
WEIGHT = WIDTH * WIDTH * 4


def folded(path: Path, nodes: list[NodeProto], in_float: tuple[str, ...] = ()) -> FoldedConstants:
    weights: dict[str, np.ndarray] = {
        "w": np.eye(WIDTH, dtype=np.float32),
        "half": np.eye(WIDTH, dtype=np.float16),
        "small": np.eye(WIDTH, dtype=np.int8),
        "scale": np.array(0.5, dtype=np.float32),
    }
    save_model(path, nodes, {"x": (FLOAT, ["n", WIDTH])}, {"y": (FLOAT, ["n", WIDTH])}, weights)
    return folded_constants(read_model(path, "m").skeleton, ("x",), in_float)


PRODUCT = helper.make_node("MatMul", ["x", "v"], ["y"])


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        (
            [helper.make_node("Transpose", ["w"], ["v"]), PRODUCT],
            FoldedConstants(replaced=WEIGHT, made=WEIGHT, largest=WEIGHT),
        ),
        (
            [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("Neg", ["t"], ["v"]), PRODUCT],
            FoldedConstants(replaced=WEIGHT, made=WEIGHT, largest=WEIGHT),
        ),
        (
            [helper.make_node("Cast", ["half"], ["v"], to=FLOAT), PRODUCT],
            FoldedConstants(replaced=WEIGHT // 2, made=WEIGHT, largest=WEIGHT),
        ),
        (
            [
                helper.make_node("Transpose", ["w"], ["v"]),
                helper.make_node("MatMul", ["x", "w"], ["a"]),
                helper.make_node("MatMul", ["a", "v"], ["y"]),
            ],
            FoldedConstants(made=WEIGHT, largest=WEIGHT),  # what others read too is kept
        ),
        ([helper.make_node("DequantizeLinear", ["small", "scale"], ["v"]), PRODUCT], FoldedConstants()),
        ([helper.make_node("MatMul", ["x", "w"], ["y"])], FoldedConstants()),
    ],
    ids=["transposed", "in two steps", "cast", "read by others too", "dequantized", "as it is"],
)
def test_constants_are_replaced_by_what_follows_from_them(
    tmp_path: Path, nodes: list[NodeProto], found: FoldedConstants
) -> None:
    assert folded(tmp_path / "m.onnx", nodes) == found


def test_weights_in_half_precision_grow_where_kernels_are_missing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "half"], ["a"]),
        helper.make_node("Cast", ["a"], ["y"], to=FLOAT),
    ]
    assert folded(tmp_path / "m.onnx", nodes) == FoldedConstants()
    grown = folded(tmp_path / "m.onnx", nodes, ("ai.onnx.MatMul",))
    assert grown == FoldedConstants(replaced=WEIGHT // 2, made=WEIGHT, largest=WEIGHT)


def test_a_table_that_a_loop_reads_by_its_pass_is_kept(tmp_path: Path) -> None:
    reading = [helper.make_node("Gather", ["w", "pass"], ["row"]), helper.make_node("Add", ["state", "row"], ["next"])]
    body = loop_body(reading, WIDTH)
    passes = helper.make_tensor("", TensorProto.INT64, [], [3])
    nodes = [
        helper.make_node("Constant", [], ["passes"], value=passes),
        helper.make_node("Loop", ["passes", "", "x"], ["y"], body=body),
    ]
    assert folded(tmp_path / "m.onnx", nodes) == FoldedConstants()


def test_a_graph_that_cannot_be_inferred_tells_nothing() -> None:
    assert folded_constants(b"", ("x",)) == FoldedConstants()
