"""Rows are rows: whatever a graph does with its axes, a row's result is its own, or the job is refused in words."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Cli, read_rows
from onnx import TensorProto, helper
from support.models import save_model

FLOAT = TensorProto.FLOAT
Node = onnx.NodeProto

MANIFEST = """\
version: 1
models:
  m: {{path: m.onnx{model}}}
jobs:
  run:
    model: m
    input: {{path: {data}, key: [row]{values}}}
    batch: {{size: {size}, last: {last}}}
    output: {{path: out{columns}}}
"""


def manifest(folder: Path, **words: Any) -> Path:
    chosen = {"model": "", "data": "data.npy", "values": "", "size": 32, "last": "short", "columns": ""} | words
    path = folder / "m.yaml"
    path.write_text(MANIFEST.format(**chosen))
    return path


def save_rows(folder: Path, *shape: int) -> np.ndarray:
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.save(folder / "data.npy", data)
    return data


def time_major(folder: Path, inputs: Sequence[int | str | None], outputs: Sequence[int | str | None]) -> None:
    """x [rows, 3, time] -> y [time, rows, 3]."""
    save_model(
        folder / "m.onnx",
        [helper.make_node("Transpose", ["x"], ["y"], perm=[2, 0, 1])],
        {"x": (FLOAT, inputs)},
        {"y": (FLOAT, outputs)},
    )


def assert_rows(folder: Path, expected: np.ndarray) -> None:
    found = read_rows(folder / "out")
    assert [row["row"] for row in found] == list(range(len(expected)))
    np.testing.assert_allclose(np.array([row["y"] for row in found], np.float32), expected, rtol=1e-4, atol=1e-5)


TIME_MAJOR = [
    (["batch", 3, "time"], ["time", "batch", 3]),
    (["batch", 3, 32], [32, "batch", 3]),
    (["N", 3, "T"], ["T", "N", 3]),
    (["N", 3, "T"], ["T_out", "rows_out", 3]),
    ([None, 3, 32], [None, None, 3]),
    ([32, 3, 32], [32, 32, 3]),
    ([32, 3, "time"], ["time", 32, 3]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "outputs"), TIME_MAJOR)
@pytest.mark.parametrize("rows", [64, 70])
def test_time_major_outputs_go_to_the_rows_that_they_are_of(
    cli: Cli, tmp_path: Path, inputs: list[int | str | None], outputs: list[int | str | None], rows: int
) -> None:
    time_major(tmp_path, inputs, outputs)
    data = save_rows(tmp_path, rows, 3, 32)
    last = "pad" if inputs[0] == 32 else "short"
    applied = cli("apply", manifest(tmp_path, last=last))
    assert applied.code == 0, applied.out
    assert_rows(tmp_path, data.transpose(0, 2, 1))


@pytest.mark.quick("1", "n")
@pytest.mark.parametrize("rows", [1, 32, "n", None])
def test_an_output_with_a_batch_that_no_input_has_goes_to_the_rows_that_it_is_of(
    cli: Cli, tmp_path: Path, rows: int | str | None
) -> None:
    """The sizes that Reshape gets hide the axis from inference."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[2, 0, 1]),
        helper.make_node("Shape", ["t"], ["sizes"]),
        helper.make_node("Reshape", ["t", "sizes"], ["y"]),
    ]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, [rows, 3, "time"])}, {"y": (FLOAT, ["steps", "batch", 3])})
    data = save_rows(tmp_path, 64, 3, 5)
    assert cli("apply", manifest(tmp_path, size=rows if isinstance(rows, int) else 16)).code == 0
    assert_rows(tmp_path, data.transpose(0, 2, 1))


@pytest.mark.slow
def test_an_untrue_shape_in_the_graph_is_overruled_by_the_manifest(cli: Cli, tmp_path: Path) -> None:
    """ONNX Runtime warns of the graph's [1, s] and runs it. A step goes on from what the output really is."""
    node = helper.make_node("Transpose", ["x"], ["7"], perm=[1, 0, 2])
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, [1, "w", 4])}, {"7": (FLOAT, [1, "s"])})
    data = save_rows(tmp_path, 3, 2, 4)

    def saved(words: str) -> Path:
        path = manifest(tmp_path, model=words, size=1)
        steps = "[{run: m, in: {x: $x}, out: {'7': z}}, {do: softmax, in: {x: $z}, out: y}]"
        steps = f"pipelines: {{p: {{steps: {steps}, outputs: {{y: $y}}}}}}\n"
        path.write_text(path.read_text().replace("    model: m\n", "    pipeline: p\n") + steps)
        return path

    refused = cli("apply", saved(", outputs: {'7': {row_axis: 1, shape: [n, 1, 5]}}"), "--format", "json")
    assert "shape-mismatch" in {one["rule"] for one in refused.json["diagnostics"]}
    applied = cli("apply", saved(", outputs: {'7': {row_axis: 1, shape: [n, 1, 4]}}"))
    assert applied.code == 0
    assert "overruled-shape" in applied.out
    expected = np.exp(data) / np.exp(data).sum(axis=-1, keepdims=True)
    assert_rows(tmp_path, expected)


def test_a_step_that_an_untrue_shape_does_not_fit_names_the_way_out(cli: Cli, tmp_path: Path) -> None:
    node = helper.make_node("Transpose", ["x"], ["7"], perm=[1, 0, 2])
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, [1, "w", 4])}, {"7": (FLOAT, [1, "s"])})
    save_rows(tmp_path, 3, 2, 4)
    path = manifest(tmp_path, model=", outputs: {'7': {row_axis: 1}}", size=1)
    steps = "[{run: m, in: {x: $x}, out: {'7': z}}, {do: ctc_greedy, in: {logits: $z, alphabet: abc}, out: [y, s]}]"
    steps = f"pipelines: {{p: {{steps: {steps}, outputs: {{y: $y}}}}}}\n"
    path.write_text(path.read_text().replace("    model: m\n", "    pipeline: p\n") + steps)
    (found,) = cli("plan", path, "--format", "json").json["diagnostics"]
    assert found["rule"] == "pipeline-mismatch"
    assert (
        'its nodes make [?, 1, 4]. If the shape is another one, declare it: outputs: {"7": {shape: […]}}'
        in found["detail"]
    )


@pytest.mark.slow
def test_a_declared_axis_is_used_where_nothing_in_the_graph_tells(cli: Cli, tmp_path: Path) -> None:
    """The inputs are time-major too, and the batch size divides both."""
    save_model(
        tmp_path / "m.onnx",
        [helper.make_node("Neg", ["x"], ["y"])],
        {"x": (FLOAT, ["a", "b", 3])},
        {"y": (FLOAT, ["a", "b", 3])},
    )
    data = save_rows(tmp_path, 70, 32, 3)
    declared = ", inputs: {x: {row_axis: 1}}, outputs: {y: {row_axis: 1}}"
    planned = cli("plan", manifest(tmp_path, model=declared), "--out", tmp_path / "plan.json")
    assert planned.code == 0, planned.out
    (job,) = (step for step in json.loads((tmp_path / "plan.json").read_text())["plans"][0]["steps"] if "job" in step)
    assert job["row_axes"] == {"x": 1, "y": 1}
    assert cli("apply", tmp_path / "plan.json").code == 0
    assert_rows(tmp_path, -data)


def test_an_axis_that_is_not_declared_follows_from_the_one_that_is(cli: Cli, tmp_path: Path) -> None:
    save_model(
        tmp_path / "m.onnx",
        [helper.make_node("Neg", ["x"], ["y"])],
        {"x": (FLOAT, ["a", "b", 3])},
        {"y": (FLOAT, ["a", "b", 3])},
    )
    data = save_rows(tmp_path, 70, 32, 3)
    assert cli("apply", manifest(tmp_path, model=", inputs: {x: {row_axis: 1}}")).code == 0
    assert_rows(tmp_path, -data)


def lstm(folder: Path) -> None:
    """x [time, batch, 4] and h [1, batch, 5], as PyTorch exports them, -> y [time, batch, 5]."""
    random = np.random.default_rng(1)
    save_model(
        folder / "m.onnx",
        [
            helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["all"], hidden_size=5),
            helper.make_node("Squeeze", ["all", "one"], ["y"]),
        ],
        {"x": (FLOAT, ["time", "batch", 4]), "h": (FLOAT, [1, "batch", 5]), "c": (FLOAT, [1, "batch", 5])},
        {"y": (FLOAT, ["time", "batch", 5])},
        {
            "w": random.standard_normal((1, 20, 4)).astype(np.float32),
            "r": random.standard_normal((1, 20, 5)).astype(np.float32),
            "one": np.array([1], np.int64),
        },
    )


def test_an_lstm_whose_batch_stands_second_gives_what_it_gives_each_row_alone(cli: Cli, tmp_path: Path) -> None:
    lstm(tmp_path)
    random = np.random.default_rng(2)
    x, h, c = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 8, 4), (40, 1, 5), (40, 1, 5)))
    np.savez(tmp_path / "data.npz", x=x, h=h, c=c)
    applied = cli("apply", manifest(tmp_path, data="data.npz", size=8))
    assert applied.code == 0, applied.out
    session = ort.InferenceSession(tmp_path / "m.onnx")
    alone = [
        session.run(["y"], {"x": a[:, None], "h": b[None], "c": d[None]})[0] for a, b, d in zip(x, h, c, strict=True)
    ]
    assert_rows(tmp_path, np.stack([row[:, 0] for row in alone]))


def constants(**values: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in values.items()}


MIXING: dict[str, tuple[list[Node], dict[str, np.ndarray]]] = {
    "softmax over the batch": ([helper.make_node("Softmax", ["x"], ["y"], axis=0)], {}),
    "cumulative sum": ([helper.make_node("CumSum", ["x", "k"], ["y"])], constants(k=0)),
    "cumulative sum from the end": ([helper.make_node("CumSum", ["x", "k"], ["y"], reverse=1)], constants(k=0)),
    "reshape across the batch": (
        [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Transpose", ["r"], ["y"])],
        constants(s=[4, -1]),
    ),
    "mean of the batch": (
        [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]), helper.make_node("Sub", ["x", "mean"], ["y"])],
        {},
    ),
    "the other end of the batch": (
        [helper.make_node("Slice", ["x", "from", "to", "k", "by"], ["y"])],
        {"from": np.array([-1]), "to": np.array([-(2**31)]), "k": np.array([0]), "by": np.array([-1])},
    ),
    "the row four before": (
        [
            helper.make_node("Pad", ["x", "more"], ["padded"]),
            helper.make_node("Slice", ["padded", "first", "last"], ["far"]),
            helper.make_node("Add", ["x", "far"], ["y"]),
        ],
        constants(more=[4, 0, 0, 0], first=[0], last=[-4]),
    ),
    "the row four after": (
        [
            helper.make_node("Pad", ["x", "more"], ["padded"]),
            helper.make_node("Slice", ["padded", "first", "last"], ["far"]),
            helper.make_node("Add", ["x", "far"], ["y"]),
        ],
        constants(more=[0, 0, 4, 0], first=[4], last=[2**31]),
    ),
    "batch normalization in training": (
        [
            helper.make_node("BatchNormalization", ["x", "g", "z", "z", "g"], ["y", "m", "v"], training_mode=1),
        ],
        {"g": np.ones(4, np.float32), "z": np.zeros(4, np.float32)},
    ),
    "dynamic quantization": (
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
            helper.make_node("DequantizeLinear", ["q", "qs", "qz"], ["y"]),
        ],
        {},
    ),
}


@pytest.mark.quick(
    "batch-softmax over the batch", "batch-the row four before", "8-cumulative sum", "8-dynamic quantization"
)
@pytest.mark.parametrize("what", MIXING)
@pytest.mark.parametrize("batch", ["batch", 8])
def test_a_graph_that_mixes_rows_fails_the_job_before_a_part(
    cli: Cli, tmp_path: Path, what: str, batch: int | str
) -> None:
    nodes, weights = MIXING[what]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, [batch, 4])}, {"y": (FLOAT, [batch, 4])}, weights)
    save_rows(tmp_path, 32, 4)
    applied = cli("apply", manifest(tmp_path, size=8))
    assert applied.code == 1, applied.out
    assert "output y, row " in applied.out
    assert "depend on the rows beside it" in applied.out
    assert "row_independence" in applied.out
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize("words", ["row_independence: false", "row_independence: {rtol: 10}"])
def test_what_is_mixed_on_purpose_runs_and_is_named(cli: Cli, tmp_path: Path, words: str) -> None:
    nodes, weights = MIXING["mean of the batch"]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 4])}, weights)
    save_rows(tmp_path, 32, 4)
    path = manifest(tmp_path, size=8, model=f", {words}")
    assert "may depend on" in cli("plan", path).out
    applied = cli("apply", path)
    assert applied.code == 0, applied.out
    report = json.loads((tmp_path / "out/_run.json").read_text())
    assert report["row_independence"]["declared_by"] == ["m"]


def test_batches_of_one_have_nothing_beside_a_row(cli: Cli, tmp_path: Path) -> None:
    nodes, weights = MIXING["mean of the batch"]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 4])}, weights)
    save_rows(tmp_path, 32, 4)
    assert cli("apply", manifest(tmp_path, size=1)).code == 0


@pytest.mark.parametrize(("words", "code"), [("", 1), (", outputs: {y: {row_axis: 1}}", 0)])
def test_where_nothing_tells_an_axis_the_batch_size_is_no_excuse(
    cli: Cli, tmp_path: Path, words: str, code: int
) -> None:
    """The steps are as many as the rows of a batch, and shape inference cannot see through the graph."""
    save_model(
        tmp_path / "m.onnx",
        [
            helper.make_node("Shape", ["x"], ["sizes"]),
            helper.make_node("NonZero", ["sizes"], ["places"]),
            helper.make_node("Squeeze", ["places"], ["flat"]),
            helper.make_node("Gather", ["sizes", "flat"], ["same"]),
            helper.make_node("Reshape", ["x", "same"], ["hidden"]),
            helper.make_node("Transpose", ["hidden"], ["y"], perm=[2, 0, 1]),
        ],
        {"x": (FLOAT, ["batch", 3, "time"])},
        {"y": (FLOAT, [None, None, None])},
    )
    data = save_rows(tmp_path, 64, 3, 32)
    applied = cli("apply", manifest(tmp_path, model=words))
    assert applied.code == code, applied.out
    if code:
        assert "row_axis: 1" in applied.out
        assert not list((tmp_path / "out").glob("part-*"))
    else:
        assert_rows(tmp_path, data.transpose(0, 2, 1))


def with_rate(folder: Path, rate: Sequence[int | str]) -> None:
    """y = x * rate, beside a mean over the whole batch."""
    save_model(
        folder / "m.onnx",
        [helper.make_node("Mul", ["x", "rate"], ["y"]), helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0)],
        {"x": (FLOAT, ["batch", 4]), "rate": (FLOAT, rate)},
        {"y": (FLOAT, ["batch", 4]), "mean": (FLOAT, [])},
    )


@pytest.mark.parametrize(
    ("rate", "words", "value"),
    [
        ([], "", "2"),
        ([4], ", inputs: {rate: {row_axis: none}}", "[1, 2, 3, 4]"),
        (["batch", 4], "", "2.5"),
        (["batch", 4], "", "[1, 2, 3, 4]"),
    ],
)
def test_a_value_that_no_row_carries_is_fed_whole_or_to_each_row(
    cli: Cli, tmp_path: Path, rate: list[int | str], words: str, value: str
) -> None:
    with_rate(tmp_path, rate)
    data = save_rows(tmp_path, 20, 4)
    path = manifest(tmp_path, model=words, values=f", values: {{rate: {value}}}", size=8, columns=", columns: [y]")
    applied = cli("apply", path)
    assert applied.code == 0, applied.out
    assert_rows(tmp_path, data * np.array(json.loads(value), np.float32))


def test_an_output_that_is_not_by_row_is_left_out_and_refused_when_asked_for(cli: Cli, tmp_path: Path) -> None:
    with_rate(tmp_path, [])
    save_rows(tmp_path, 20, 4)
    words = {"model": ", outputs: {mean: {row_axis: none}}", "values": ", values: {rate: 2}"}
    asked = cli("plan", manifest(tmp_path, **words, columns=", columns: [y, mean]"))
    assert asked.code == 1
    assert "output-without-rows" in asked.out
    assert cli("apply", manifest(tmp_path, **words)).code == 0
    assert set(read_rows(tmp_path / "out")[0]) == {"row", "y"}


def test_a_pipeline_takes_the_rows_from_where_its_models_have_them(cli: Cli, tmp_path: Path) -> None:
    time_major(tmp_path, ["batch", 3, "time"], ["time", "batch", 3])
    data = save_rows(tmp_path, 40, 3, 8)
    path = tmp_path / "m.yaml"
    path.write_text("""\
version: 1
models: {m: {path: m.onnx}}
pipelines:
  p:
    steps: [{run: m, in: {x: $x}, out: {y: steps}}, {do: scale, in: {x: $steps, scale: 2}, out: y}]
    outputs: {y: $y}
jobs:
  run: {pipeline: p, input: {path: data.npy, key: [row], columns: {x: array}}, batch: {size: 8}, output: {path: out}}
""")
    applied = cli("apply", path)
    assert applied.code == 0, applied.out
    assert_rows(tmp_path, 2 * data.transpose(0, 2, 1))


def test_a_pipeline_whose_model_mixes_rows_fails(cli: Cli, tmp_path: Path) -> None:
    nodes, weights = MIXING["softmax over the batch"]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 4])}, weights)
    save_rows(tmp_path, 32, 4)
    path = tmp_path / "m.yaml"
    path.write_text("""\
version: 1
models: {m: {path: m.onnx}}
pipelines: {p: {steps: [{run: m, in: {x: $x}, out: {y: y}}], outputs: {y: $y}}}
jobs:
  run: {pipeline: p, input: {path: data.npy, key: [row], columns: {x: array}}, batch: {size: 8}, output: {path: out}}
""")
    applied = cli("apply", path)
    assert applied.code == 1
    assert "depend on the rows beside it" in applied.out


def test_rows_that_fail_do_not_break_the_proof(cli: Cli, tmp_path: Path) -> None:
    """The first batch holds an index that the table does not have; what is left of it is compared."""
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    nodes = [
        helper.make_node("Neg", ["x"], ["minus"]),
        helper.make_node("Neg", ["minus"], ["plus"]),
        helper.make_node("Gather", ["table", "plus"], ["z"]),
        helper.make_node("CumSum", ["z", "k"], ["y"]),
    ]
    save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": (TensorProto.INT64, ["batch"])},
        {"y": (FLOAT, ["batch", 2])},
        {"table": table, "k": np.array(0)},
    )
    np.save(tmp_path / "data.npy", np.array([1, 99, 2, 3, 4, 5, 6, 7]))
    path = manifest(tmp_path, size=8)
    path.write_text(path.read_text() + "    errors: {max_failed: 3}\n")
    applied = cli("apply", path)
    assert applied.code == 1
    assert "depend on the rows beside it" in applied.out


@pytest.mark.slow
def test_a_proof_is_paid_for_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortdeploy.runtime.session import OrtSession  # noqa: PLC0415  counted here alone
    from ortdeploy.sessions import evidence  # noqa: PLC0415

    save_model(
        tmp_path / "m.onnx",
        [helper.make_node("Neg", ["x"], ["y"])],
        {"x": (FLOAT, ["batch", 4])},
        {"y": (FLOAT, ["batch", 4])},
    )
    save_rows(tmp_path, 32, 4)
    sizes: list[int] = []
    run = OrtSession.run

    def counted(session: OrtSession, outputs: Any, feeds: Any, adapters: Any) -> Any:
        sizes.append(len(feeds["x"]))
        return run(session, outputs, feeds, adapters)

    monkeypatch.setattr(OrtSession, "run", counted)
    monkeypatch.setattr(evidence, "EASY", 0.0)  # else each block of so short runs is looked at again
    path = manifest(
        tmp_path, size=16, model=", session: {intra_op_num_threads: 1}"
    )  # one caller, so runs have an order
    assert cli("apply", path).code == 0
    assert sorted(sizes[:5]) == [1, 1, 1, 3, 16]
    sizes.clear()
    path.write_text(path.read_text().replace("path: out", "path: again"))
    assert cli("apply", path).code == 0
    assert sizes[:2] == [16, 16]
    assert sum(sizes[2:]) <= 8, "the last rows are looked at, and no others"


def test_a_dropout_that_drops_and_noise_in_a_branch_are_named(cli: Cli, tmp_path: Path) -> None:
    """The exact line that the warning proposes makes the plan clean and the job run."""
    branch = [
        helper.make_graph(
            [helper.make_node(kind, ["d"], [f"o_{kind}"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"o_{kind}", FLOAT, None)],
        )
        for kind in ("RandomNormalLike", "Identity")
    ]
    save_model(
        tmp_path / "m.onnx",
        [
            helper.make_node("Dropout", ["x", "ratio", "training"], ["d"]),
            helper.make_node("If", ["training"], ["y"], then_branch=branch[0], else_branch=branch[1]),
        ],
        {"x": (FLOAT, ["batch", 4])},
        {"y": (FLOAT, ["batch", 4])},
        {"ratio": np.array(0.5, np.float32), "training": np.array(True)},
    )
    save_rows(tmp_path, 32, 4)
    planned = cli("plan", manifest(tmp_path, size=8))
    assert "random-operator" in planned.out
    assert "Dropout and RandomNormalLike" in planned.out
    assert cli("apply", tmp_path / "m.yaml").code == 1
    path = manifest(tmp_path, size=8, model=", row_independence: false")
    assert "random-operator" not in cli("plan", path).out
    assert cli("apply", path, "--new-run").code == 0


def test_a_batch_that_is_cut_anew_is_noted_where_rows_depend_on_each_other(cli: Cli, tmp_path: Path) -> None:
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    nodes = [
        helper.make_node("Neg", ["x"], ["minus"]),
        helper.make_node("Neg", ["minus"], ["plus"]),
        helper.make_node("Gather", ["table", "plus"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=0),
    ]
    save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": (TensorProto.INT64, ["batch"])},
        {"y": (FLOAT, ["batch", 2])},
        {"table": table},
    )
    np.save(tmp_path / "data.npy", np.array([1, 99, 2, 3, 4, 5, 6, 7]))
    path = manifest(tmp_path, size=4, model=", row_independence: false")
    path.write_text(path.read_text() + "    errors: {max_failed: 3}\n")
    applied = cli("apply", path)
    assert applied.code == 0, applied.out
    assert "batch.cut_anew" in applied.err
    report = json.loads((tmp_path / "out/_run.json").read_text())
    assert report["row_independence"]["batches_cut_anew"] >= 1
