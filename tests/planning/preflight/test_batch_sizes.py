"""A batch size that a graph cannot take is refused by the plan; ONNX Runtime is asked whether that is right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from support.machines import Machine
from support.models import save_model

from ortdeploy.graph.shapes import infer_shapes

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx}
jobs:
  run:
    model: m
    input: {path: x.npy}
    batch: {size: SIZE, last: LAST}
    output: {path: out}
"""


def model(path: Path, nodes: Sequence[onnx.NodeProto], **weights: Any) -> Path:
    """x [batch, 2, 4] to y, which says no more than its rank."""
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    return save_model(
        path,
        nodes,
        {"x": (TensorProto.FLOAT, ["batch", 2, 4])},
        {"y": (TensorProto.FLOAT, ["n", None])},
        arrays,
    )


def written_batch(path: Path) -> Path:
    """A batch of 8 written into a Reshape, as exporters do for a fixed example input."""
    return model(path, [helper.make_node("Reshape", ["x", "size"], ["y"], name="flat")], size=np.array([8, 8]))


def found(cli: Cli, folder: Path, size: int, rows: int, last: str = "short") -> list[dict[str, Any]]:
    np.save(folder / "x.npy", np.ones((rows, 2, 4), np.float32))
    (folder / "m.yaml").write_text(MANIFEST.replace("SIZE", str(size)).replace("LAST", last))
    diagnostics: list[dict[str, Any]] = cli("plan", folder / "m.yaml", "--format", "json").json["diagnostics"]
    return diagnostics


def runs(path: Path, rows: int) -> bool:
    """Whether ONNX Runtime gives as many rows as it gets."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options)
    try:
        (y,) = session.run(None, {"x": np.ones((rows, 2, 4), np.float32)})
    except (Fail, InvalidArgument, RuntimeException):
        return False
    return len(y) == rows


GRAPHS = {
    "reshape": (
        [helper.make_node("Reshape", ["x", "size"], ["y"], name="flat")],
        {"size": np.array([8, 8])},
        "Reshape (flat): it makes [8, 8] of [32, 2, 4]",
        (8,),
    ),
    "concat": (
        [
            helper.make_node("Reshape", ["x", "size"], ["flat"]),
            helper.make_node("Concat", ["flat", "more"], ["y"], axis=1),
        ],
        {"size": np.array([-1, 8]), "more": np.ones((4, 8), np.float32)},
        "Concat (y): Can't merge shape info. Both inferred and declared dimension have values but they differ. Inferred=4",
        (4,),
    ),
    "add": (
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Add", ["flat", "bias"], ["y"], name="sum")],
        {"bias": np.ones((16, 8), np.float32)},
        "Add (sum): Incompatible dimensions",
        (16,),
    ),
    "another size": (  # of a row, computed as exporters of transformers do, through a Slice that inference gives up on
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Reshape", ["one", "one"], ["end"]),
            helper.make_node("Slice", ["shape", "zero", "end"], ["rows"]),
            helper.make_node("Concat", ["rows", "sixteen"], ["size"], axis=0),
            helper.make_node("Reshape", ["x", "size"], ["y"], name="heads"),
        ],
        {"zero": np.array([0]), "one": np.array([1]), "sixteen": np.array([16])},
        "Reshape (heads): it makes [32, 16] of [32, 2, 4]",
        (),
    ),
    "free": (
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "zero"], ["rows"]),
            helper.make_node("Concat", ["rows", "eight"], ["size"], axis=0),
            helper.make_node("Reshape", ["x", "size"], ["y"]),
        ],
        {"zero": np.array([0]), "eight": np.array([8])},
        None,
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
    ),
}


def test_a_result_of_a_whole_run_is_one_rows_where_a_run_gets_one(cli: Cli, tmp_path: Path) -> None:
    model(tmp_path / "m.onnx", [helper.make_node("Reshape", ["x", "size"], ["y"])], size=np.array([1, -1]))
    (one,) = found(cli, tmp_path, 32, 64)
    assert (one["rule"], one["line"]) == ("output-without-rows", 9)
    assert "batch: {size: 1}" in one["detail"]
    assert found(cli, tmp_path, 1, 64) == []


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_refused_does_not_run_and_what_is_advised_does(cli: Cli, tmp_path: Path, name: str) -> None:
    nodes, weights, problem, fitting = GRAPHS[name]
    path = model(tmp_path / "m.onnx", nodes, **weights)
    assert runs(path, 32) == (problem is None)
    assert [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if runs(path, size)] == list(fitting)
    diagnostics = found(cli, tmp_path, 32, 64)
    if problem is None:
        assert diagnostics == []
        return
    (one,) = diagnostics
    assert (one["rule"], one["line"]) == ("unusable-batch", 8)
    assert problem in one["detail"]
    advice = f"It takes {fitting[-1]}: set batch: {{size: {fitting[-1]}}}." if fitting else "that it was exported with."
    assert one["detail"].endswith(advice)


@pytest.mark.slow
def test_a_branch_that_is_not_taken_need_not_fit(cli: Cli, tmp_path: Path) -> None:
    """As PyTorch exports squeeze(0): where there is one row, its dimension goes away."""
    branches = [
        helper.make_graph(
            [helper.make_node("Squeeze", ["x", "zero"], ["s"]), helper.make_node("Unsqueeze", ["s", "zero"], ["t"])],
            "then",
            [],
            [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
        ),
        helper.make_graph(
            [helper.make_node("Identity", ["x"], ["e"])],
            "else",
            [],
            [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
        ),
    ]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Equal", ["shape", "one"], ["alone"]),
        helper.make_node("Squeeze", ["alone"], ["single"]),
        helper.make_node("If", ["single"], ["chosen"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Flatten", ["chosen"], ["y"]),
    ]
    path = model(tmp_path / "m.onnx", nodes, zero=np.array([0]), one=np.array([1]))
    assert runs(path, 32)
    assert runs(path, 1)
    assert found(cli, tmp_path, 32, 65) == []
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0


@pytest.mark.slow
def test_a_last_batch_that_does_not_fit_is_padded_or_dropped(cli: Cli, tmp_path: Path) -> None:
    path = written_batch(tmp_path / "m.onnx")
    assert not runs(path, 4)
    (one,) = found(cli, tmp_path, 8, 20)
    assert "cannot take 4 rows at a time: Reshape (flat): it makes [8, 8] of [4, 2, 4]" in one["detail"]
    assert one["detail"].endswith("These are left for the last batch. Set batch: {last: pad} or {last: drop}.")
    assert found(cli, tmp_path, 8, 16) == []
    assert found(cli, tmp_path, 8, 20, "drop") == []
    (one,) = found(cli, tmp_path, 8, 4)
    assert "cannot take 4 rows" in one["detail"]
    assert found(cli, tmp_path, 8, 20, "pad") == []
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0


def test_a_graph_that_is_not_consistent_by_itself_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", [helper.make_node("Add", ["a", "b"], ["y"])], a=np.ones(3), b=np.ones(4))
    inferred = infer_shapes(path.read_bytes(), {"x": (5, 2, 4)})
    assert (inferred.problem, dict(inferred.outputs)) == (None, {})


def test_sizes_that_are_not_known_stay_what_the_graph_says(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", [helper.make_node("Flatten", ["x"], ["y"])])
    assert dict(infer_shapes(path.read_bytes(), {"x": (5, None, None)}).outputs) == {"y": (5, 8)}


def test_filling_up_is_not_advised_where_a_whole_batch_fits_no_better(cli: Cli, tmp_path: Path) -> None:
    written_batch(tmp_path / "m.onnx")
    (one,) = found(cli, tmp_path, 32, 4)
    assert one["detail"].endswith("It takes 8: set batch: {size: 8}.")


@pytest.mark.parametrize(
    ("items", "batch", "size", "said"),
    [
        (None, 8, 4, ['model "m" with 4 rows: Reshape (flat): it makes [8, 8] of [4, 2, 4]. It takes 8']),
        (None, 8, 8, []),
        (6, 8, 4, []),
        (6, 4, 4, ['model "m" with 4 items: Reshape (flat)']),
        (5, 8, 4, ['model "m" with 4 items: Reshape (flat)']),
    ],
)
def test_a_model_of_a_pipeline_is_asked_too(
    cli: Cli, tmp_path: Path, items: int | None, batch: int, size: int, said: list[str]
) -> None:
    """Also with the items of a step each, and with those that are left: 4 rows of 5 items are 8, 8 and 4."""
    written_batch(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((8, *([items] if items else []), 2, 4), np.float32))
    run = "{run: m, in: {x: $%s}, out: {y: y}}"
    each = f"{{each: $x, as: one, batch: {batch}, steps: [{run % 'one'}], collect: {{y: ys}}}}"
    step, out = (each, "ys") if items else (run % "x", "y")
    (tmp_path / "m.yaml").write_text(
        f"version: 1\nmodels: {{m: {{path: m.onnx}}}}\npipelines: {{p: {{steps: [{step}], outputs: {{{out}: ${out}}}}}}}\n"
        f"jobs: {{run: {{pipeline: p, input: {{path: x.npy, columns: {{x: array}}}}, batch: {{size: {size}}}, "
        "output: {path: out, format: npz}}}\n"
    )
    diagnostics = cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    assert [one["rule"] for one in diagnostics] == ["unusable-batch"] * len(said)
    assert all(text in one["detail"] for text, one in zip(said, diagnostics, strict=True))
    assert (cli("apply", tmp_path / "m.yaml", "-q").code == 0) is (not said)


def test_a_graph_of_several_rows_is_not_fed_the_one_that_a_state_goes_through(cli: Cli, tmp_path: Path) -> None:
    four: Sequence[int | str] = [4, 2]
    value = (TensorProto.FLOAT, four)
    nodes = [helper.make_node("Add", ["x", "h"], ["after"]), helper.make_node("Relu", ["after"], ["y"])]
    save_model(tmp_path / "m.onnx", nodes, {"x": value, "h": value}, {"y": value, "after": value})
    np.save(tmp_path / "x.npy", np.ones((8, 2), np.float32))
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\npipelines:\n  p:\n    state: {h: $after}\n"
        "    steps: [{run: m, in: {x: $x, h: $h}, out: {y: y, after: after}}]\n    outputs: {y: $y}\n"
        "jobs: {run: {pipeline: p, input: {path: x.npy, columns: {x: array}}, output: {path: out}}}\n"
    )
    (one,) = cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    assert "x is [4, 2] in the graph, and [1, 2] is fed" in one["detail"]


@pytest.mark.parametrize("place", ["input", "inside", "output"])
def test_no_value_of_a_run_on_cuda_has_more_elements_than_its_kernels_count(
    cli: Cli, tmp_path: Path, place: str
) -> None:
    """511 rows fit, 512 do not; in a pipeline, and on the CPU. A batch that is searched for is a power of two."""
    given, inside, made = (4096 if place == one else 1 for one in ("input", "inside", "output"))
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["a"], axes=[2]),
        helper.make_node("Tile", ["a", "inside"], ["b"]),
        helper.make_node("ReduceMean", ["b"], ["c"], axes=[2]),
        helper.make_node("Tile", ["c", "made"], ["y"]),
    ]
    weights = {"inside": np.array([1, 1, inside]), "made": np.array([1, 1, made])}
    sizes: dict[str, tuple[int, Sequence[int | str]]] = {
        "x": (TensorProto.FLOAT, ["n", 1024, given]),
        "y": (TensorProto.FLOAT, ["n", 1024, made]),
    }
    save_model(tmp_path / "m.onnx", nodes, {"x": sizes["x"]}, {"y": sizes["y"]}, weights, opset=13)
    (tmp_path / "box.yaml").write_text(Machine(opens=("CUDA", "CPU")).device_file())

    def planned(providers: str, size: int | str, runs: str) -> Any:
        steps = "pipelines: {p: {steps: [{run: m, in: {x: $x}, out: {y: y}}], outputs: {y: $y}}}\n"
        job = f"{{{runs}, input: {{path: x.npz}}, batch: {{size: {size}}}, output: {{path: out, format: npz}}}}"
        models = f"models: {{m: {{path: m.onnx, providers: {providers}}}}}\n"
        (tmp_path / "m.yaml").write_text(f"version: 1\n{models}{steps * ('pipeline' in runs)}jobs: {{j: {job}}}\n")
        device = ("--device", str(tmp_path / "box.yaml"))
        return cli("plan", str(tmp_path / "m.yaml"), *device, "--format", "json").json

    def refused(*what: Any) -> list[str]:
        return [one["rule"] for one in planned(*what)["diagnostics"] if one["severity"] == "error"]

    for runs in ("model: m", "pipeline: p"):
        assert refused("[CUDA, CPU]", 512, runs) == ["oversized-tensor"]
        assert refused("[CUDA, CPU]", 511, runs) == []
        assert refused("[CPU]", 512, runs) == []
        searched = {chain: planned(chain, "auto", runs)["steps"][-1]["batching"] for chain in ("[CUDA, CPU]", "[CPU]")}
        assert [searched[chain].get("most") for chain in searched] == [256, None]
