"""Constants in `run` steps, and values of a job that reach scalars of a pipeline's models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import Shape, save_model

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
SCALAR: Shape = []
BY_ROW: Shape = ["batch", 4]
X = np.arange(40, dtype=np.float32).reshape(10, 4)

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx{model}}}}}
pipelines:
  p:
    steps:
      - {step}
    outputs: {{y: $y}}
jobs:
  run:
    pipeline: p
    input: {{path: data.npy, columns: {{x: array}}, key: [row]{values}}}
    batch: {{size: 4}}
    output: {{path: out}}
"""


def write(folder: Path, step: str, values: str = "", model: str = "") -> Path:
    values = f", values: {values}" if values else ""
    (folder / "m.yaml").write_text(MANIFEST.format(step=step, values=values, model=model))
    return folder / "m.yaml"


def found(folder: Path) -> np.ndarray:
    parts = sorted((folder / "out").glob("part-*"))
    return np.array([json.loads(line)["y"] for path in parts for line in path.read_text().splitlines()])


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    """y = x * k + b: k is a scalar for the whole run, b has a vector for each row."""
    nodes = [
        helper.make_node("Cast", ["k"], ["factor"], to=FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": (FLOAT, BY_ROW), "k": (INT64, SCALAR), "b": (FLOAT, BY_ROW)},
        {"y": (FLOAT, BY_ROW)},
    )
    np.save(tmp_path / "data.npy", X)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wires", "values", "b"),
    [
        ("k: 3, b: 0.5", "", 0.5),
        ("k: 3, b: [1, 2, 3, 4]", "", [1, 2, 3, 4]),
        ("k: $k, b: 0.5", "{k: 3}", 0.5),
        ("k: $k, b: $b", "{k: 3, b: [4, 3, 2, 1]}", [4, 3, 2, 1]),
    ],
)
def test_a_constant_is_fed_whole_or_for_each_row(scaled: Path, cli: Cli, wires: str, values: str, b: Any) -> None:
    done = cli("apply", write(scaled, f"{{run: m, in: {{x: $x, {wires}}}, out: {{y: y}}}}", values))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(found(scaled), X * 3 + b)


@pytest.mark.parametrize(
    ("three", "model"), [([3], ""), (["n"], ", session: {free_dimension_overrides: {n: 3}}")], ids=["graph", "override"]
)
def test_a_constant_reaches_a_model_of_a_fixed_batch_inside_each(
    tmp_path: Path, cli: Cli, three: Shape, model: str
) -> None:
    nodes = [helper.make_node("Mul", ["x", "k"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": (FLOAT, three), "k": (FLOAT, SCALAR), "b": (FLOAT, three)},
        {"y": (FLOAT, three)},
    )
    np.save(tmp_path / "data.npy", X)
    inner = "{run: m, in: {x: $one, k: $k, b: 1}, out: {y: y_of_one}}"
    step = f"{{each: $x, as: one, batch: 8, steps: [{inner}], collect: {{y_of_one: y}}}}"
    done = cli("apply", write(tmp_path, step, "{k: 2}", model))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(found(tmp_path), X * 2 + 1)


def test_a_constant_stands_at_the_axis_of_the_rows(tmp_path: Path, cli: Cli) -> None:
    columns: Shape = [4, "batch"]
    nodes = [helper.make_node("Transpose", ["b"], ["t"], perm=[1, 0]), helper.make_node("Add", ["x", "t"], ["y"])]
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, BY_ROW), "b": (FLOAT, columns)}, {"y": (FLOAT, BY_ROW)})
    np.save(tmp_path / "data.npy", X)
    done = cli("apply", write(tmp_path, "{run: m, in: {x: $x, b: [1, 2, 3, 4]}, out: {y: y}}"))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(found(tmp_path), X + np.array([1, 2, 3, 4]))


def test_text_is_a_constant(tmp_path: Path, cli: Cli) -> None:
    nodes = [
        helper.make_node("Equal", ["word", "yes"], ["equal"]),
        helper.make_node("Cast", ["equal"], ["factor"], to=FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    weights = {"yes": np.array("yes", dtype=object)}
    save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": (FLOAT, BY_ROW), "word": (STRING, SCALAR)},
        {"y": (FLOAT, BY_ROW)},
        weights,
        opset=19,
    )
    np.save(tmp_path / "data.npy", X)
    done = cli("apply", write(tmp_path, '{run: m, in: {x: $x, word: "yes"}, out: {y: y}}'))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(found(tmp_path), X)


@pytest.mark.parametrize(
    ("wires", "values", "words"),
    [
        ("x: $x, k: 3.5, b: 1", "", 'Input "k" (int64 []) of model "m" cannot take it: 3.5 does not fit int64'),
        ("x: $x, k: three, b: 1", "", 'Input "k" (int64 []) of model "m" cannot take it: it is no int64'),
        ("x: $x, k: [3], b: 1", "", "it is [1], and [] is wanted"),
        ("x: $x, k: 3, b: [1, 2]", "", "it is [2], and [4] is wanted"),
        ("x: $x, k: 3, b: [[1], [2, 3]]", "", "its nested lists differ in length"),
        ("x: $x, k: 3, b: 1, c: 2", "", 'Model "m" has no input "c". Known: b, k, x.'),
        ("x: $x, k: $x, b: 1", "", "is not by row, and $x is one of each row. Write one value in its place"),
        ("x: $x, k: $k, b: 1", "{k: three}", 'Input "k" (int64 []) of pipeline "p": it is no int64'),
        ("x: $x, k: 3, b: 1", "{k: 3}", 'Pipeline "p" has no input "k". Known: x.'),
        ("x: $x, b: 1", "", 'Nothing feeds input "k" (int64 [])'),
    ],
)
def test_what_an_input_cannot_take_is_refused_once(scaled: Path, cli: Cli, wires: str, values: str, words: str) -> None:
    refused = cli("plan", write(scaled, f"{{run: m, in: {{{wires}}}, out: {{y: y}}}}", values))
    text = " ".join((refused.out + refused.err).split())
    assert refused.code == 1
    assert words in text
    assert text.count("error[") == 1, text


@pytest.mark.slow
def test_another_constant_is_another_result(scaled: Path, cli: Cli) -> None:
    step = "{{run: m, in: {{x: $x, k: {}, b: 0}}, out: {{y: y}}}}"
    assert cli("apply", write(scaled, step.format(1))).code == 0
    refused = cli("apply", write(scaled, step.format(2)))
    assert refused.code == 1
    assert cli("apply", write(scaled, step.format(2)), "--new-run").code == 0
    np.testing.assert_allclose(found(scaled), X * 2)
