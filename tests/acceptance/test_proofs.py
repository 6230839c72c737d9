"""What is proven of a job, on which rows, and what happens if a later comparison disagrees."""

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Cli, run_process
from onnx import TensorProto, helper
from support.models import save_model

from ortdeploy.cli.exit_codes import EXIT_USAGE
from ortdeploy.process.cores import core_count
from ortdeploy.sessions import evidence

FLOAT = TensorProto.FLOAT


def report(folder: Path, output: str = "out") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / output / "_run.json").read_text())
    return found


def write(folder: Path, *, model: str = "", batch: str = "{size: 32}", rows_per_part: int = 100_000) -> Path:
    path = folder / "m.yaml"
    path.write_text(
        f"version: 1\nmodels: {{m: {{path: m.onnx{model}}}}}\njobs:\n"
        f"  j: {{model: m, input: {{path: x.npy}}, batch: {batch}, "
        f"output: {{path: out, format: npy, rows_per_part: {rows_per_part}}}}}\n"
    )
    return path


def normalizing(folder: Path) -> None:
    """Batch normalization in training mode, which mixes rows."""
    node = helper.make_node("BatchNormalization", ["x", "one", "nil", "nil", "one"], ["y", "m", "v"], training_mode=1)
    weights = {"one": np.ones(4, np.float32), "nil": np.zeros(4, np.float32)}
    save_model(folder / "m.onnx", [node], {"x": (FLOAT, ["N", 4])}, {"y": (FLOAT, ["N", 4])}, weights)


def mixing_if_bright(folder: Path) -> None:
    """y is x, without the mean of the batch if one of its numbers is above 100."""
    less = [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]), helper.make_node("Sub", ["x", "mean"], ["a"])]
    branches = [
        helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, FLOAT, None)])
        for name, nodes in (("a", less), ("b", [helper.make_node("Identity", ["x"], ["b"])]))
    ]
    nodes: list[onnx.NodeProto] = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "limit"], ["is_bright"]),
        helper.make_node("If", ["is_bright"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    weights = {"limit": np.array(100, np.float32)}
    save_model(folder / "m.onnx", nodes, {"x": (FLOAT, ["N", 4])}, {"y": (FLOAT, ["N", 4])}, weights)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_black_frames_first_prove_nothing(cli: Cli, tmp_path: Path) -> None:
    normalizing(tmp_path)
    rows = numbers(100, 4)
    rows[:32] = 0
    np.save(tmp_path / "x.npy", rows)
    applied = cli("apply", write(tmp_path))
    assert applied.code == 1, applied.out
    assert "its results depend on the rows beside it" in applied.out
    assert not list((tmp_path / "out").glob("part-*"))


def test_the_report_says_on_how_many_rows_what_is_proven(cli: Cli, tmp_path: Path) -> None:
    save_model(
        tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["N", 4])}, {"y": (FLOAT, ["N", 4])}
    )
    np.save(tmp_path / "x.npy", np.zeros((64, 4), np.float32))
    path = write(tmp_path)
    assert cli("apply", path).code == 0
    (kind,) = report(tmp_path)["proven"].items()
    looks = kind[1]["looks"]
    assert 1 <= looks <= core_count()  # one of each caller that got a batch
    assert kind == (
        "row_independence",
        {"rows": looks, "looks": looks, "since": None, "not_proven": "all rows were equal", "remembered": False},
    )
    np.save(tmp_path / "x.npy", numbers(64, 4))
    assert cli("apply", path, "--new-run").code == 0
    proven = report(tmp_path)["proven"]["row_independence"]
    assert proven["not_proven"] is None
    assert proven["since"] is None
    assert proven["rows"] >= 3
    path.write_text(path.read_text().replace("path: out", "path: again"))
    assert cli("apply", path).code == 0
    assert report(tmp_path, "again")["proven"]["row_independence"]["remembered"]


def test_why_nothing_was_compared_is_in_the_report(cli: Cli, tmp_path: Path) -> None:
    normalizing(tmp_path)
    np.save(tmp_path / "x.npy", numbers(8, 4))
    assert cli("apply", write(tmp_path, batch="{size: 1}")).code == 0
    assert report(tmp_path)["proven"]["row_independence"]["not_proven"] == "no rows have run beside each other"
    assert cli("apply", write(tmp_path, model=", row_independence: false"), "--new-run").code == 0
    assert report(tmp_path)["proven"]["row_independence"]["not_proven"] == "row_independence: false of m"


def test_rows_in_doubt_are_named_and_stay_in_doubt_until_they_are_made_anew(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "FLOOR", 1e9)  # else each block of so short runs is looked at
    monkeypatch.setattr(evidence, "EASY", 0.0)
    mixing_if_bright(tmp_path)
    rows = numbers(1600, 4)  # so many that some are committed before the last ones have run, however late the writer is
    rows[1120:] *= 1000
    np.save(tmp_path / "x.npy", rows)
    words, one = {"batch": "{size: 4}", "rows_per_part": 8}, ", session: {intra_op_num_threads: 1}"  # and one caller
    path = write(tmp_path, model=one, **words)  # type: ignore[arg-type]  # each has its type
    applied = cli("apply", path)
    assert applied.code == 1, applied.out
    assert "its results depend on the rows beside it" in applied.out
    assert "of out were committed or kept after the last comparison that agreed, and may be wrong" in applied.out
    assert "apply --new-run" in applied.out
    wrong = [int(part.stem.removeprefix("part-")) * 8 for part in (tmp_path / "out").glob("part-*.npy")]
    first = int(applied.out.split("Rows ")[1].split()[0])
    assert first <= 1120 < max(wrong), "parts with wrong rows are committed, and said to be in doubt"
    again = cli("apply", path)
    assert again.code == 1, "what is in doubt does not become good by itself"
    assert f"Rows {first} to " in again.out
    declared = write(tmp_path, model=f"{one}, row_independence: false", **words)  # type: ignore[arg-type]
    plan = tmp_path / "plan.json"
    assert cli("plan", declared, "--out", plan).code == 0
    shard = cli("apply", plan, "--shard", "0/1")
    assert (shard.code, shard.out.count(f"Rows {first} to ") > 0) == (EXIT_USAGE, True), shard.out
    assert cli("finish", plan).code == 1, "shards that make the other rows do not make them good"
    assert f"Rows {first} to " in cli("apply", declared).out, "no plan has begun"
    assert cli("apply", declared, "--new-run").code == 0


def test_a_value_in_place_of_a_default_is_said_not_to_be_by_row(cli: Cli, tmp_path: Path) -> None:
    save_model(
        tmp_path / "m.onnx",
        [helper.make_node("Mul", ["x", "k"], ["y"])],
        {"x": (FLOAT, ["N", 4]), "k": (FLOAT, [4])},
        {"y": (FLOAT, ["N", 4])},
        {"k": np.ones(4, np.float32)},
    )
    rows = numbers(10, 4)
    np.save(tmp_path / "x.npy", rows)
    path = write(tmp_path, batch="{size: 4}")
    path.write_text(path.read_text().replace("x.npy}", "x.npy, values: {k: [9, 8, 7, 6]}}"))
    refused = cli("apply", path)
    assert refused.code == 1
    assert "inputs: {k: {row_axis: none}} of the model" in " ".join(refused.out.split())
    path.write_text(path.read_text().replace("m.onnx}", "m.onnx, inputs: {k: {row_axis: none}}}"))
    assert cli("apply", path).code == 0
    found = np.concatenate([np.load(part) for part in sorted((tmp_path / "out").glob("part-*.npy"))])
    np.testing.assert_allclose(found, rows * np.array([9, 8, 7, 6], np.float32), rtol=1e-6)


@pytest.mark.parametrize(("last", "code"), [("short", 1), ("pad", 0)])
def test_a_squeeze_without_axes_is_no_mixture_of_rows(cli: Cli, tmp_path: Path, last: str, code: int) -> None:
    """A row alone loses the axis that counts rows; the advice for that says what helps, and it does."""
    nodes = [helper.make_node("Unsqueeze", ["x", "one"], ["wide"]), helper.make_node("Squeeze", ["wide"], ["y"])]
    inputs, outputs = {"x": (FLOAT, ["N", 4])}, {"y": (FLOAT, None)}
    save_model(tmp_path / "m.onnx", nodes, inputs, outputs, {"one": np.array([1])})  # type: ignore[arg-type]  # no shape
    rows = numbers(9, 4)
    np.save(tmp_path / "x.npy", rows)
    applied = cli("apply", write(tmp_path, batch=f"{{size: 4, last: {last}}}"))
    assert applied.code == code, applied.out
    if code:
        assert "it has lost the axis that counts rows, as by Squeeze without axes" in applied.out
        assert "batch: {last: pad}" in applied.out
    else:
        np.testing.assert_array_equal(np.load(next((tmp_path / "out").glob("part-*.npy"))), rows)


def test_one_row_on_another_axis_is_named_by_that_axis(cli: Cli, tmp_path: Path) -> None:
    """A reader of lines gives [time, 1, letters], of an unknown shape: the advice names the axis, and it helps."""
    shape = {"shape": np.array([1, 2, 2])}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["y"], perm=[1, 0, 2]),
    ]
    inputs, outputs = {"x": (FLOAT, [1, 4])}, {"y": (FLOAT, None)}
    save_model(tmp_path / "m.onnx", nodes, inputs, outputs, shape)  # type: ignore[arg-type]  # no shape
    rows = numbers(3, 4)
    np.save(tmp_path / "x.npy", rows)
    path = write(tmp_path, batch="{size: 1}")
    assert "{row_axis: 1}} of the model" in cli("apply", path).out
    path.write_text(path.read_text().replace("m.onnx}", "m.onnx, outputs: {y: {row_axis: 1}}}"))
    assert cli("apply", path).code == 0
    np.testing.assert_array_equal(np.load(next((tmp_path / "out").glob("part-*.npy"))), rows.reshape(3, 2, 2))


def dividing(folder: Path, divisor: list[onnx.NodeProto]) -> None:
    """y is x divided by what other nodes make, both int32."""
    nodes = [*divisor, helper.make_node("Div", ["x", "divisor"], ["y"])]
    whole = TensorProto.INT32
    weights = {"nil": np.array(0), "one": np.array(1), "two": np.array(2)}
    save_model(folder / "m.onnx", nodes, {"x": (whole, ["N"])}, {"y": (whole, ["N"])}, weights)


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="this division traps on x86 alone")
def test_a_row_that_traps_alone_leaves_the_job_without_a_proof_and_says_so(tmp_path: Path) -> None:
    """The divisor is the number of rows less two: -1 for a row alone, which the job never runs."""
    less_two = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "nil"], ["rows"]),
        helper.make_node("Sub", ["rows", "two"], ["less"]),
        helper.make_node("Cast", ["less"], ["divisor"], to=TensorProto.INT32),
    ]
    dividing(tmp_path, less_two)
    rows = np.full(8, -(2**31), np.int32)
    np.save(tmp_path / "x.npy", rows)
    write(tmp_path, batch="{size: 4}")
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    assert "rows.not_compared" in applied.err
    found = np.concatenate([np.load(part) for part in sorted((tmp_path / "out").glob("part-*.npy"))])
    np.testing.assert_array_equal(found, rows // 2)
    proven = report(tmp_path)["proven"]["row_independence"]
    assert proven["not_proven"] == "rows could not run again: the process was ended by SIGFPE"
    assert proven["since"] == 0


@pytest.mark.slow
def test_a_proof_that_survives_is_remembered_and_needs_no_process_of_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twos = [
        helper.make_node("Abs", ["x"], ["size"]),
        helper.make_node("Sub", ["size", "size"], ["zeros"]),
        helper.make_node("Cast", ["zeros"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Add", ["wide", "one"], ["ones"]),
        helper.make_node("Add", ["ones", "one"], ["twos"]),
        helper.make_node("Cast", ["twos"], ["divisor"], to=TensorProto.INT32),
    ]
    dividing(tmp_path, twos)
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.int32))
    path = write(tmp_path, batch="{size: 4}")
    assert cli("apply", path).code == 0
    assert report(tmp_path)["proven"]["row_independence"]["not_proven"] is None

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("another process")

    monkeypatch.setattr("ortdeploy.application.supervisor.Supervisor.run", refuse)
    path.write_text(path.read_text().replace("path: out", "path: again"))
    assert cli("apply", path).code == 0
