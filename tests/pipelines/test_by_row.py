"""Models without a dimension for rows in `run` steps, and constants for models whose batch is fixed."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import Shape, save_model

FLOAT = TensorProto.FLOAT
X = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
THREE: Shape = [3]

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx{model}}}}}
pipelines:
  p:{state}
    steps:
      - {steps}
    outputs: {{y: $y}}
jobs:
  run:
    pipeline: p
    input: {{{source}}}
    batch: {{size: 4}}
    output: {{path: out}}
"""


def write(folder: Path, steps: str, source: str = "path: data.npy, columns: {x: array}", **more: str) -> Path:
    text = MANIFEST.format(steps=steps, source=source, model=more.get("model", ""), state=more.get("state", ""))
    (folder / "m.yaml").write_text(text)
    return folder / "m.yaml"


def found(folder: Path) -> list[list[float]]:
    parts = sorted((folder / "out").glob("part-*"))
    return [json.loads(line)["y"] for path in parts for line in path.read_text().splitlines()]


def softmax(row: np.ndarray) -> np.ndarray:
    powers = np.exp(row)
    return np.asarray(powers / powers.sum())


def add(folder: Path, a: Shape, b: Shape, y: Shape) -> None:
    """Write y = a + b."""
    node = helper.make_node("Add", ["a", "b"], ["y"])
    save_model(folder / "m.onnx", [node], {"a": (FLOAT, a), "b": (FLOAT, b)}, {"y": (FLOAT, y)})
    np.save(folder / "data.npy", X)


def test_each_row_is_a_run_without_the_axis_of_rows(tmp_path: Path, cli: Cli) -> None:
    """Rows of several lengths: the model's own axis 0 is the row's."""
    node = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])})
    rows = [X.ravel()[: 1 + place % 4] for place in range(10)]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps({"v": row.tolist()}) + "\n" for row in rows))
    done = cli("apply", write(tmp_path, "{run: m, by_row: true, in: {x: $v}, out: {y: y}}", "path: v.jsonl"))
    assert done.code == 0, done.out + done.err
    for row, got in zip(rows, found(tmp_path), strict=True):
        np.testing.assert_allclose(got, softmax(row), rtol=1e-5)


@pytest.mark.slow
def test_constants_are_fed_whole_and_scalars_are_results(tmp_path: Path, cli: Cli) -> None:
    nodes = [helper.make_node("Mul", ["x", "k"], ["p"]), helper.make_node("ReduceSum", ["p"], ["y"], keepdims=0)]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, THREE), "k": (FLOAT, THREE)}, {"y": (FLOAT, [])})
    np.save(tmp_path / "data.npy", X)
    done = cli("apply", write(tmp_path, "{run: m, by_row: true, in: {x: $x, k: [1, 2, 3]}, out: {y: y}}"))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(found(tmp_path), X @ [1, 2, 3], rtol=1e-5)


@pytest.mark.parametrize("inside", [False, True], ids=["of rows", "of windows"])
def test_state_is_handed_on_beside_single_rows(tmp_path: Path, cli: Cli, inside: bool) -> None:
    nodes = [helper.make_node("Add", ["x", "h"], ["h2"]), helper.make_node("Mul", ["x", "h2"], ["y"])]
    inputs = {"x": (FLOAT, THREE), "h": (FLOAT, THREE)}
    save_model(tmp_path / "m.onnx", nodes, inputs, {"y": (FLOAT, THREE), "h2": (FLOAT, THREE)})
    run = "{run: m, by_row: true, in: {x: $x, h: $h}, out: {y: %s, h2: h2}}"
    if inside:
        np.save(tmp_path / "data.npy", X.reshape(2, 5, 3))
        steps = f"{{each: $w, as: x, state: {{h: $h2}}, steps: [{run % 'one'}], collect: {{one: y}}}}"
        path = write(tmp_path, steps, "path: data.npy, columns: {w: array}")
        expected = (X.reshape(2, 5, 3) * X.reshape(2, 5, 3).cumsum(axis=1)).tolist()
    else:
        np.save(tmp_path / "data.npy", X)
        path = write(tmp_path, run % "y", state="\n    state: {h: $h2}")
        expected = (X * X.cumsum(axis=0)).tolist()
    done = cli("apply", path)
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(found(tmp_path), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_is_fed_constants_alone_keeps_its_batch(tmp_path: Path, cli: Cli) -> None:
    add(tmp_path, [1, 3], [1, 3], [1, 3])
    steps = "{run: m, in: {a: 1, b: [1, 2, 3]}, out: {y: z}}\n      - {op: Add, in: {A: $x, B: $z}, out: y}"
    done = cli("apply", write(tmp_path, steps))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(found(tmp_path), X + np.array([2, 3, 4]), rtol=1e-5)


@pytest.mark.parametrize(
    ("fed", "values"), [("b: 2", ""), ("b: $b", ", values: {b: 2}")], ids=["in its place", "by the job"]
)
def test_a_constant_at_a_fixed_batch_beside_open_rows(tmp_path: Path, cli: Cli, fed: str, values: str) -> None:
    add(tmp_path, ["batch", 3], [1, 3], ["batch", 3])
    steps = f"{{run: m, in: {{a: $x, {fed}}}, out: {{y: y}}}}"
    done = cli("apply", write(tmp_path, steps, f"path: data.npy, columns: {{x: array}}{values}"))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(found(tmp_path), X + 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "steps", "words"),
    [
        (
            (THREE, THREE, THREE),
            "{run: m, in: {a: $x, b: 1}, out: {y: y}}",
            "A row is [3], and the model wants a single value. If the model has no dimension for rows, add by_row: "
            "true to the run step that feeds it.",
        ),
        (
            (THREE, THREE, THREE),
            "{do: scale, in: {x: $x, scale: 2}, out: z}\n      - {run: m, in: {a: $z, b: 1}, out: {y: y}}",
            "A row is [3], and the model wants a single value. If the model has no dimension for rows, add by_row: "
            "true to the step.",
        ),
        (
            (["batch", 3], ["batch", 3], ["batch", 3]),
            "{op: Identity, in: {input: $x}, out: z}\n      - {run: m, by_row: true, in: {a: $z, b: 1}, out: {y: y}}",
            "A row is [3], and the model wants [batch, 3].",
        ),
        (
            ([1, 3], [2, 3], [2, 3]),
            "{run: m, in: {a: $x, b: 1}, out: {y: y}}",
            'Model "m" takes 1 in "a" and 2 in "b" as its number of rows, and a run has one.',
        ),
        (
            (THREE, THREE, THREE),
            "{op: Identity, in: {input: $x}, out: z}\n"
            "      - {run: m, by_row: true, fuse: true, in: {a: $z, b: $z}, out: {y: y}}",
            "It runs row by row, and the op steps around it run for all rows. Leave out by_row or fuse.",
        ),
    ],
)
def test_wirings_that_are_refused(
    tmp_path: Path, cli: Cli, shapes: tuple[Shape, Shape, Shape], steps: str, words: str
) -> None:
    add(tmp_path, *shapes)
    refused = cli("plan", write(tmp_path, steps))
    assert refused.code == 1
    assert words in " ".join((refused.out + refused.err).split())
