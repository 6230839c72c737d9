"""An exporter's fixed sizes of inputs give way to those of the manifest, where the nodes of the graph do not need them."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Cli, read_rows
from onnx import TensorProto, helper, numpy_helper
from support.models import save_model

from ortdeploy.graph.declared_inputs import overruling_shapes

FLOAT = TensorProto.FLOAT


def narrow(folder: Path, *, flat: bool = False) -> np.ndarray:
    """x [1, 1, 4, 4] -> y: a 3 x 3 convolution, its mean; `flat`: with a Reshape to [1, 16] before. Returns its kernel."""
    kernel = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["c"], ["sizes"], start=2),  # ONNX Runtime folds it if it believes the sizes
        helper.make_node("ReduceProd", ["sizes"], ["area"], keepdims=0),
        helper.make_node("Cast", ["area"], ["count"], to=FLOAT),
        helper.make_node("ReduceSum", ["c", "axes"], ["sum"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["y"]),
    ]
    weights: dict[str, np.ndarray] = {"k": kernel, "axes": np.array([1, 2, 3], np.int64)}
    if flat:
        nodes = [helper.make_node("Reshape", ["x", "to"], ["y"])]
        weights = {"to": np.array([1, 16], np.int64)}
    shape = [1, 16] if flat else [1]
    save_model(folder / "m.onnx", nodes, {"x": (FLOAT, [1, 1, 4, 4])}, {"y": (FLOAT, shape)}, weights)
    return np.array(kernel[0, 0])


def saved(folder: Path, shape: str, batch: str = "{size: 3}", more: str = "") -> Path:
    path = folder / "m.yaml"
    path.write_text(f"""\
version: 1
models: {{m: {{path: m.onnx, inputs: {{x: {{shape: {shape}}}}}}}}}
jobs:
  run:
    {more or "model: m"}
    input: {{path: x.npy, key: [row]}}
    batch: {batch}
    output: {{path: out}}
""")
    return path


def means(data: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    padded = np.pad(data[:, 0], ((0, 0), (1, 1), (1, 1)))
    height, width = data.shape[2:]
    views = [kernel[i, j] * padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.array(np.sum(views, axis=0).mean(axis=(1, 2)))


@pytest.mark.parametrize(
    ("shape", "sizes"), [("[n, 1, h, w]", (6, 10)), ("[3, 1, 8, 8]", (8, 8)), ("[n, 1, 4, 4]", (4, 4))]
)
def test_sizes_that_no_node_needs_are_overruled(cli: Cli, tmp_path: Path, shape: str, sizes: tuple[int, int]) -> None:
    kernel = narrow(tmp_path)
    data = np.random.default_rng(3).standard_normal((6, 1, *sizes)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    applied = cli("apply", saved(tmp_path, shape))
    assert applied.code == 0, applied.out
    assert "overruled-shape" in applied.out
    assert "[1, 1, 4, 4]" in applied.out
    found = np.array([row["y"] for row in read_rows(tmp_path / "out")])
    np.testing.assert_allclose(found, means(data, kernel), rtol=1e-4, atol=1e-4)


def test_a_saved_plan_opens_what_it_was_made_for(cli: Cli, tmp_path: Path) -> None:
    kernel = narrow(tmp_path)
    data = np.random.default_rng(3).standard_normal((6, 1, 6, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    assert cli("plan", saved(tmp_path, "[n, 1, h, w]"), "--out", tmp_path / "p.json").code == 0
    assert cli("apply", tmp_path / "p.json").code == 0
    found = np.array([row["y"] for row in read_rows(tmp_path / "out")])
    np.testing.assert_allclose(found, means(data, kernel), rtol=1e-4, atol=1e-4)


def test_op_steps_are_fused_into_a_graph_whose_sizes_are_overruled(cli: Cli, tmp_path: Path) -> None:
    kernel = narrow(tmp_path)
    data = np.random.default_rng(3).standard_normal((6, 1, 6, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    path = saved(tmp_path, "[n, 1, h, w]", more="pipeline: p")
    steps = "[{op: Neg, in: {X: $x}, out: n}, {run: m, in: {x: $n}, out: {y: y}, fuse: true}]"
    path.write_text(path.read_text() + f"pipelines: {{p: {{steps: {steps}, outputs: {{y: $y}}}}}}\n")
    applied = cli("apply", path)
    assert applied.code == 0, applied.out
    found = np.array([row["y"] for row in read_rows(tmp_path / "out")])
    np.testing.assert_allclose(found, means(-data, kernel), rtol=1e-4, atol=1e-4)


def test_weights_beside_the_model_are_found(cli: Cli, tmp_path: Path) -> None:
    kernel = narrow(tmp_path)
    onnx.save(
        onnx.load(tmp_path / "m.onnx"), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=65, location="w"
    )
    data = np.random.default_rng(3).standard_normal((6, 1, 6, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    applied = cli("apply", saved(tmp_path, "[n, 1, h, w]"))
    assert applied.code == 0, applied.out
    found = np.array([row["y"] for row in read_rows(tmp_path / "out")])
    np.testing.assert_allclose(found, means(data, kernel), rtol=1e-4, atol=1e-4)


def test_a_size_that_a_node_needs_is_refused_before_the_run(cli: Cli, tmp_path: Path) -> None:
    narrow(tmp_path, flat=True)
    np.save(tmp_path / "x.npy", np.zeros((6, 1, 6, 6), np.float32))
    refused = cli("plan", saved(tmp_path, "[1, 1, 6, 6]", "{size: 1}"), "--format", "json")
    assert "shape-mismatch" in {one["rule"] for one in refused.json["diagnostics"]}


def test_a_name_for_a_size_that_a_node_needs_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    narrow(tmp_path, flat=True)
    np.save(tmp_path / "x.npy", np.ones((2, 1, 4, 4), np.float32))
    applied = cli("apply", saved(tmp_path, "[n, 1, 4, 4]", "{size: 1}"))
    assert applied.code == 0, applied.out
    assert "overruled-shape" not in applied.out


def test_what_only_a_run_can_tell_is_said_with_the_shape_that_was_overruled(cli: Cli, tmp_path: Path) -> None:
    """A Loop hides from shape inference that its body needs 4 columns."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["more"], ["go_on"]),
            helper.make_node("Add", ["state", "weights"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("pass", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, None),
        ],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "weights")],
    )
    node = helper.make_node("Loop", ["passes", "", "x"], ["y"], body=body)
    weights = {"passes": np.array(2, np.int64)}
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}, weights)
    np.save(tmp_path / "x.npy", np.zeros((6, 6), np.float32))
    applied = cli("apply", saved(tmp_path, "[n, 6]"), "--format", "json")
    assert applied.code == 1
    assert "The manifest overrules the shape that the graph declares for" in json.dumps(applied.json)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_size_that_a_node_needs_is_not_asked_for_as_one_which_fits_beside_any_other(width: int) -> None:
    needed = numpy_helper.from_array(np.zeros((max(width, 2),), np.float32), "bias")
    taken = helper.make_tensor_value_info("x", FLOAT, [1, width])
    given = helper.make_tensor_value_info("y", FLOAT, [1, width])
    graph = helper.make_graph([helper.make_node("Add", ["x", "bias"], ["y"])], "g", [taken], [given], [needed])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert overruling_shapes(model, {"x": ("n", width)}) == {"x": ("n", width)}
    wanted = {} if width > 1 else {"x": (1, "w")}
    assert overruling_shapes(model, {"x": (1, "w")}) == wanted
