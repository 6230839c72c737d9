"""Nodes that have no kernel for float16 compute in float32, and casts to float16 and back are left out."""

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from support.models import save_model

from ortdeploy.graph.activations import most_at_once, plan_buffers
from ortdeploy.graph.half_precision import in_single_precision
from ortdeploy.graph.model import read_model
from ortdeploy.graph.shapes import infer_values

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
WIDTH = 64
LACKING = ("ai.onnx.MatMul", "ai.onnx.Relu")


def skeleton(path: Path, nodes: list[NodeProto], kind: int = HALF) -> bytes:
    weights = {"w": np.eye(WIDTH, dtype=np.float16)}
    save_model(path, nodes, {"x": (kind, ["n", WIDTH])}, {"y": (kind, ["n", WIDTH])}, weights)
    return read_model(path, "m").skeleton


def operators(skeleton: bytes) -> list[str]:
    inferred = infer_values(skeleton, {"x": (10, WIDTH)})
    assert inferred is not None
    graph, types = in_single_precision(*inferred, LACKING)
    made = {name for node in graph.node for name in node.output}
    assert {value.name for value in graph.output} <= made
    assert all(name in types for name in made)
    return [node.op_type for node in graph.node]


PRODUCT = helper.make_node("MatMul", ["x", "w"], ["a"])


@pytest.mark.parametrize(
    ("nodes", "kind", "then"),
    [
        ([PRODUCT, helper.make_node("Relu", ["a"], ["y"])], HALF, ["Cast", "Cast", "MatMul", "Relu", "Cast"]),
        (
            [PRODUCT, helper.make_node("Transpose", ["a"], ["b"], perm=[0, 1]), helper.make_node("Relu", ["b"], ["y"])],
            HALF,
            ["Cast", "Cast", "MatMul", "Cast", "Transpose", "Cast", "Relu", "Cast"],
        ),
        (
            [
                helper.make_node("Cast", ["x"], ["h"], to=HALF),
                helper.make_node("MatMul", ["h", "w"], ["a"]),
                helper.make_node("Cast", ["a"], ["y"], to=FLOAT),
            ],
            FLOAT,
            ["Cast", "Cast", "MatMul", "Identity"],  # the first is read by nobody
        ),
        ([helper.make_node("Transpose", ["x"], ["y"], perm=[0, 1])], HALF, ["Transpose"]),
    ],
    ids=["from half to half", "one that has a kernel", "with single inputs", "nothing to cast"],
)
def test_values_are_cast_where_kernels_are_missing(
    tmp_path: Path, nodes: list[NodeProto], kind: int, then: list[str]
) -> None:
    assert operators(skeleton(tmp_path / "m.onnx", nodes, kind)) == then


def test_buffers_are_those_of_float32_with_casts_at_both_ends(tmp_path: Path) -> None:
    """Measured so with onnxruntime 1.32: a chain of such products takes what one of float32 takes."""
    nodes = [helper.make_node("MatMul", [f"v{number}", "w"], [f"v{number + 1}"]) for number in range(4)]
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    graph = skeleton(tmp_path / "m.onnx", nodes)
    row = 10 * WIDTH
    halves, singles = (plan_buffers(graph, {"x": (10, WIDTH)}, in_float) for in_float in ((), LACKING))
    assert halves is not None
    assert singles is not None
    assert most_at_once(halves) == 2 * 2 * row
    assert most_at_once(singles) == 2 * 4 * row
    assert [buffer.size for buffer in singles if buffer.is_result] == [2 * row]
