"""Every postprocess step against a known answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import helper
from support.family_models import with_metadata
from support.models import save_model

from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms.catalogue import POSTPROCESS

SCORES = np.array([[1.0, 3.0, 2.0], [0.5, 0.5, -1.0]], dtype=np.float32)


def run(name: str, array: np.ndarray, **options: Any) -> tuple[np.ndarray, ...]:
    given_options: dict[str, Any] = {name: "x", "as": "y", **options}
    tensor = TensorType(str(array.dtype), (ROWS, *array.shape[1:]))
    inferred = POSTPROCESS[name].infer(given_options, tensor)
    results = POSTPROCESS[name].build(given_options, tensor)(array)
    assert [tensor.shape for tensor in inferred] == [(ROWS, *result.shape[1:]) for result in results]
    for tensor_type, result in zip(inferred, results, strict=True):
        assert tensor_type.dtype == ("string" if result.dtype == object else str(result.dtype))
    return results


def refuse(name: str, tensor: TensorType, **options: Any) -> str:
    with pytest.raises(InapplicableError) as caught:
        POSTPROCESS[name].infer({name: "x", "as": "y", **options}, tensor)
    return str(caught.value)


def test_softmax() -> None:
    (result,) = run("softmax", SCORES)
    expected = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
    assert np.allclose(result, expected, rtol=1e-6)
    assert result.dtype == np.float32


def test_softmax_does_not_overflow() -> None:
    (result,) = run("softmax", np.array([[1000.0, 1000.0]], dtype=np.float32))
    assert result.tolist() == [[0.5, 0.5]]


def test_sigmoid() -> None:
    (result,) = run("sigmoid", np.array([[0.0, 2.0, -2.0, 1000.0, -1000.0]], dtype=np.float32))
    assert np.allclose(result, [[0.5, 0.880797, 0.119203, 1.0, 0.0]], atol=1e-6)
    assert result.dtype == np.float32


def test_argmax_and_its_value() -> None:
    assert run("argmax", SCORES)[0].tolist() == [1, 0]
    index, value = run("argmax", SCORES, value_as="v")
    assert (index.tolist(), value.tolist()) == ([1, 0], [3.0, 0.5])
    assert "it takes [rows, …, classes] and gets float32 [rows]" in refuse("argmax", TensorType("float32", (ROWS,)))


def test_top_k_with_equal_values_takes_the_lower_index_first() -> None:
    index, value = run("top_k", SCORES, k=2, values_as="v")
    assert index.tolist() == [[1, 2], [0, 1]]
    assert value.tolist() == [[3.0, 2.0], [0.5, 0.5]]
    assert "classes must be at least 4 (k) and is 3" in refuse("top_k", TensorType("float32", (ROWS, 3)), k=4)


@given(arrays(np.float32, (3, 6), elements=st.integers(0, 3).map(float)), st.integers(1, 6))
def test_top_k_is_what_a_full_sort_gives(scores: np.ndarray, k: int) -> None:
    (index,) = run("top_k", scores, k=k)
    expected = [sorted(range(6), key=lambda i: (-row[i], i))[:k] for row in scores]
    assert index.tolist() == expected


def test_threshold() -> None:
    assert run("threshold", SCORES, at=2.0)[0].tolist() == [[False, True, True], [False, False, False]]


def test_labels() -> None:
    names = ["a", "b", "c"]
    assert run("labels", np.array([2, 0]), lines=names, **{"from": "labels.txt"})[0].tolist() == ["c", "a"]
    assert run("labels", np.array([[2, 0], [1, 1]]), lines=names, **{"from": "labels.txt"})[0].tolist() == [
        ["c", "a"],
        ["b", "b"],
    ]
    with pytest.raises(ValueError, match="labels for 0 to 2 and an index of 3"):
        run("labels", np.array([3]), lines=names, **{"from": "labels.txt"})
    assert "whole numbers" in refuse("labels", TensorType("float32", (ROWS,)))


def labelled(folder: Path, metadata: dict[str, str], step: str, kind: str = "model: m") -> Path:
    """Write a job that takes the best of three scores of a model with metadata, or of a pipeline with it."""
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(folder / "m.onnx", [node], {"x": (1, ["batch", 3])}, {"y": (1, ["batch", 3])})
    with_metadata(folder / "m.onnx", **metadata)
    np.save(folder / "x.npy", np.eye(3, dtype=np.float32))
    pipeline = "p: {steps: [{run: m, in: {x: $x}, out: {y: y}}], outputs: {y: $y}}"
    (folder / "m.yaml").write_text(
        f"version: 1\nmodels: {{m: {{path: m.onnx}}}}\npipelines: {{{pipeline if kind != 'model: m' else ''}}}\n"
        f"jobs: {{run: {{{kind}, input: {{path: x.npy, columns: {{x: array}}}}, output: {{path: out}}, "
        f"postprocess: [{{argmax: y, as: best}}, {{{step}, as: name}}]}}}}\n"
    )
    return folder / "m.yaml"


@pytest.mark.quick(
    "metadata0-labels: best, model: m-model: m", 1, "metadata2-labels: best, model: m, metadata: classes-model: m",
    "metadata3-labels: best, model: m, metadata: labels-pipeline: p",
)  # fmt: skip
@pytest.mark.parametrize("kind", ["model: m", "pipeline: p"])
@pytest.mark.parametrize(
    ("metadata", "step"),
    [
        ({"names": "{0: 'a', 1: 'b', 2: 'c'}"}, "labels: best, model: m"),
        ({"id2label": '{"0": "a", "1": "b", "2": "c"}'}, "labels: best, model: m, metadata: id2label"),
        ({"classes": "a\nb\nc"}, "labels: best, model: m, metadata: classes"),
        ({"labels": '["a", "b", "c"]'}, "labels: best, model: m, metadata: labels"),
    ],
)
def test_labels_are_read_from_the_metadata(
    tmp_path: Path, cli: Cli, metadata: dict[str, str], step: str, kind: str
) -> None:
    done = cli("apply", labelled(tmp_path, metadata, step, kind))
    assert done.code == 0, done.out + done.err
    rows = [json.loads(line) for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("labels: best, model: n", 'Job "run" runs no model "n". Known: m'),
        ("labels: best, model: m, metadata: name", 'no "name" in its metadata. Did you mean "names"?'),
        ("labels: best", "labels takes one of from, model, and has none of them"),
    ],
)
def test_labels_that_no_metadata_has_are_refused(tmp_path: Path, cli: Cli, step: str, words: str) -> None:
    refused = cli("plan", labelled(tmp_path, {"names": "['a', 'b', 'c']"}, step))
    text = " ".join((refused.out + refused.err).split())
    assert refused.code == 1
    assert words in text
    assert text.count("error[") == 1, text
