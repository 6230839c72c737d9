"""Weights and values in Constant nodes and in branches and bodies are counted; a skeleton keeps none of the weights."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from support.models import Shape, loop_body, save_model

from ortdeploy.graph.inner_graphs import inlined
from ortdeploy.graph.model import read_model
from ortdeploy.graph.values import largest_value, live_bytes

Make = Callable[[Path], Path]
FLOAT = TensorProto.FLOAT
WIDTH = 64
WEIGHT = WIDTH * WIDTH * 4
ROW = WIDTH * 4


def matrix(name: str) -> TensorProto:
    return numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), name)


def branch(name: str, weight: TensorProto, *nodes: NodeProto) -> GraphProto:
    value = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, ["n", WIDTH])
    return helper.make_graph(list(nodes), name, [], [value], [weight])


def in_constant_node(path: Path) -> Path:
    nodes = [helper.make_node("Constant", [], ["w"], value=matrix("w")), helper.make_node("MatMul", ["x", "w"], ["y"])]
    return save_model(path, nodes, {"x": (FLOAT, ["n", WIDTH])}, {"y": (FLOAT, ["n", WIDTH])})


def in_branches(path: Path) -> Path:
    """Both branches call their weight and their values by the same names, of other sizes."""
    long = branch(
        "long",
        matrix("w"),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
    )
    scale = numpy_helper.from_array(np.ones(WIDTH, np.float32), "w")
    short = branch("short", scale, helper.make_node("Mul", ["x", "w"], ["a"]))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("IsNaN", ["sum"], ["odd"]),
        helper.make_node("If", ["odd"], ["y"], then_branch=short, else_branch=long),
    ]
    return save_model(path, nodes, {"x": (FLOAT, ["n", WIDTH])}, {"y": (FLOAT, ["n", WIDTH])}, opset=17)


def in_body(path: Path) -> Path:
    body = loop_body([helper.make_node("MatMul", ["state", "w"], ["next"])], WIDTH, [matrix("w")])
    nodes = [helper.make_node("Loop", ["passes", "always", "x"], ["y"], body=body)]
    weights = {"passes": np.array(3, dtype=np.int64), "always": np.array(True)}
    return save_model(path, nodes, {"x": (FLOAT, ["n", WIDTH])}, {"y": (FLOAT, ["n", WIDTH])}, weights, opset=17)


@pytest.mark.parametrize(("make", "more"), [(in_constant_node, 0), (in_branches, ROW), (in_body, 9)])
def test_weights_anywhere_are_weighed_and_dropped(tmp_path: Path, make: Make, more: int) -> None:
    facts = read_model(make(tmp_path / "m.onnx"), "m")
    assert facts.weights.size == WEIGHT + more
    assert 0 < len(facts.skeleton) < WEIGHT / 4
    assert facts.outline is not None
    assert len(facts.outline.model) < WEIGHT / 4


@pytest.mark.parametrize("make", [in_constant_node, in_branches, in_body])
def test_an_outline_without_these_weights_is_a_sound_model(tmp_path: Path, make: Make) -> None:
    outline = read_model(make(tmp_path / "m.onnx"), "m").outline
    assert outline is not None
    assert outline.largest == WEIGHT
    (tmp_path / "weights").write_bytes(bytes(outline.largest))
    (tmp_path / "outline.onnx").write_bytes(outline.model)
    onnx.checker.check_model(str(tmp_path / "outline.onnx"))


@pytest.mark.parametrize("make", [in_branches, in_body])
def test_values_of_branches_and_bodies_are_counted(tmp_path: Path, make: Make) -> None:
    size = live_bytes(read_model(make(tmp_path / "m.onnx"), "m").skeleton, {"x": (10, WIDTH)})
    assert size is not None
    assert 10 * ROW <= size <= 3 * 10 * ROW + 16


@pytest.mark.parametrize("axis", [0, 1])
def test_values_of_a_pass_of_a_scan_are_counted_and_what_it_gathers(tmp_path: Path, axis: int) -> None:
    """A pass makes a thousand copies of one slice, and their sum goes on."""
    one = helper.make_tensor_value_info("one", FLOAT, [WIDTH])
    total = helper.make_tensor_value_info("total", FLOAT, [WIDTH])
    nodes = [
        helper.make_node("Expand", ["one", "many"], ["copies"]),
        helper.make_node("ReduceSum", ["copies", "first"], ["total"], keepdims=0),
    ]
    own = [numpy_helper.from_array(np.array(value), name) for name, value in (("many", [1000, 1]), ("first", [0]))]
    body = helper.make_graph(nodes, "pass", [one], [total], own)
    scan = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_input_axes=[axis])
    taken: Shape = ["n", WIDTH] if axis == 0 else [WIDTH, "n"]
    path = save_model(tmp_path / "m.onnx", [scan], {"x": (FLOAT, taken)}, {"y": (FLOAT, ["n", WIDTH])}, opset=17)
    skeleton = read_model(path, "m").skeleton
    fed = {"x": (10, WIDTH) if axis == 0 else (WIDTH, 10)}
    assert largest_value(skeleton, fed)[1] == 1000 * WIDTH
    assert 1001 * ROW <= (live_bytes(skeleton, fed) or 0) <= 1030 * ROW


def test_a_graph_without_inner_ones_is_left_alone(tmp_path: Path) -> None:
    graph = onnx.load(str(in_constant_node(tmp_path / "m.onnx"))).graph
    assert inlined(graph) is graph


READ = """
import sys
from pathlib import Path
from ortdeploy.graph.model import read_model
from ortdeploy.graph.values import live_bytes
from ortdeploy.process.memory import peak_memory, resident_memory
before = resident_memory()
assert read_model(Path(sys.argv[1]), "m").problem is None
print((peak_memory() or 0) - (before or 0))
"""


@pytest.mark.slow
@pytest.mark.parametrize("holder", ["initializer", "Constant"])
def test_a_model_is_read_without_its_weights(tmp_path: Path, holder: str) -> None:
    weights = numpy_helper.from_array(np.zeros((4096, 2048), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if holder == "Constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weights))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2048])],
        [weights] if holder == "initializer" else [],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    done = subprocess.run([sys.executable, "-c", READ, tmp_path / "m.onnx"], capture_output=True, text=True, check=True)
    assert int(done.stdout) < (tmp_path / "m.onnx").stat().st_size / 2  # onnx's schemas and the like, 8 MiB
