"""Contracts of operations in a whole deployment: what plan refuses, and rows that fail alone with what was wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import save_model

FLOAT = TensorProto.FLOAT
MANIFEST = """\
version: 1
models:
  detector: {{path: detector.onnx}}
pipelines:
  p:
    steps:
      - {{run: detector, in: {{x: $x}}, out: {{boxes: boxes, scores: scores}}}}
      - {step}
    outputs: {{kept: $kept}}
jobs:
  run:
    pipeline: p
    input: {{path: data.npy, key: [row]}}
    output: {{path: out}}
    errors: {{max_failed: 3}}
"""


def detector(folder: Path, boxes: list[int | str | None], scores: list[int | str | None]) -> None:
    """Write a model that gives its input as boxes, and the largest number of each as its score."""
    last = helper.make_node("ReduceMax", ["x"], ["scores"], axes=[-1], keepdims=0)
    whole = helper.make_node("Identity", ["x"], ["scores"])
    nodes = [helper.make_node("Identity", ["x"], ["boxes"]), whole if len(scores) == len(boxes) else last]
    outputs = {"boxes": (FLOAT, boxes), "scores": (FLOAT, scores)}
    save_model(folder / "detector.onnx", nodes, {"x": (FLOAT, boxes)}, outputs)


def plan(folder: Path, cli: Cli, step: str, array: np.ndarray) -> tuple[int, str]:
    np.save(folder / "data.npy", array)
    (folder / "m.yaml").write_text(MANIFEST.format(step=step))
    done = cli("plan", folder / "m.yaml")
    return done.code, " ".join((done.out + done.err).split())


NMS = "{do: nms, in: {boxes: $boxes, scores: $scores}, out: kept}"


def test_boxes_of_two_numbers_are_refused_by_plan(tmp_path: Path, cli: Cli) -> None:
    detector(tmp_path, ["batch", 10, 2], ["batch", 10])
    code, text = plan(tmp_path, cli, NMS, np.ones((4, 10, 2), np.float32))
    assert code == 1
    assert "nms: it takes boxes [rows, n, 4] or [rows, n, 5] and gets float32 [rows, 10, 2]" in text


def test_the_raw_output_of_a_detector_is_refused_by_plan(tmp_path: Path, cli: Cli) -> None:
    detector(tmp_path, ["batch", 84, 840], ["batch", 84, 840])
    code, text = plan(tmp_path, cli, NMS, np.ones((2, 84, 840), np.float32))
    assert code == 1
    assert "let the model give them as two outputs" in text


def test_swapped_values_are_refused_by_plan(tmp_path: Path, cli: Cli) -> None:
    detector(tmp_path, ["batch", 10, 4], ["batch", 10])
    swapped = "{do: nms, in: {boxes: $scores, scores: $boxes}, out: kept}"
    code, text = plan(tmp_path, cli, swapped, np.ones((4, 10, 4), np.float32))
    assert code == 1
    assert "boxes and scores seem to be swapped" in text
    code, text = plan(tmp_path, cli, NMS, np.ones((4, 10, 4), np.float32))
    assert code == 0, text


def test_probabilities_are_no_boxes(tmp_path: Path, cli: Cli) -> None:
    detector(tmp_path, ["batch", 10, 4], ["batch", 10])
    steps = (
        "{do: softmax, in: {x: $boxes}, out: share}\n      - {do: nms, in: {boxes: $share, scores: $scores}, out: kept}"
    )
    code, text = plan(tmp_path, cli, steps, np.ones((4, 10, 4), np.float32))
    assert code == 1
    assert "it takes boxes in the unit pixels or normalised and gets probability" in text


def test_rows_that_do_not_keep_the_contract_fail_alone(tmp_path: Path, cli: Cli) -> None:
    """The graph leaves the last size open; only the rows tell. One holds NaN."""
    detector(tmp_path, ["batch", "n", "numbers"], ["batch", "n"])
    boxes = np.tile(np.array([0, 0, 5, 5], np.float32), (4, 10, 1))
    boxes[2, 3, 1] = np.nan
    code, text = plan(tmp_path, cli, NMS, boxes)
    assert code == 0, text
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.out + done.err
    (failed,) = [json.loads(line) for line in (tmp_path / "out/_failed.jsonl").read_text().splitlines()]
    assert (failed["row"], failed["message"]) == (2, "nms: boxes holds NaN")


def test_a_last_size_that_only_rows_tell_fails_them_with_words(tmp_path: Path, cli: Cli) -> None:
    detector(tmp_path, ["batch", "n", "numbers"], ["batch", "n"])
    np.save(tmp_path / "data.npy", np.ones((3, 10, 2), np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST.format(step=NMS))
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.out + done.err
    failed = [json.loads(line)["message"] for line in (tmp_path / "out/_failed.jsonl").read_text().splitlines()]
    assert len(failed) == 3
    assert failed[0].startswith("nms: it takes boxes [rows, n, 4] or [rows, n, 5] and gets float32 [1, 10, 2]")


EACH = """\
version: 1
models:
  double: {path: double.onnx}
pipelines:
  p:
    steps:
      - each: $items
        as: item
        steps:
          - {run: double, in: {x: $item}, out: {y: y}}
        collect: {y: ys}
    outputs: {ys: $ys}
jobs:
  run:
    pipeline: p
    input: {path: data.npz, key: [row]}
    output: {path: out}
"""


@pytest.mark.parametrize("name", ["items", "others"])
def test_each_takes_an_input_of_the_pipeline(tmp_path: Path, cli: Cli, name: str) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    save_model(tmp_path / "double.onnx", nodes, {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 4])})
    items = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    columns: dict[str, Any] = {name: items, "more": items}
    np.savez(tmp_path / "data.npz", **columns)
    (tmp_path / "m.yaml").write_text(EACH)
    done = cli("apply", tmp_path / "m.yaml")
    if name == "others":
        assert done.code == 1
        assert 'Nothing feeds input "items"' in " ".join(done.out.split())
        assert 'of pipeline "p"' in " ".join(done.out.split())
        return
    assert done.code == 0, done.out + done.err
    rows = [json.loads(line) for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    np.testing.assert_array_equal([row["ys"] for row in rows], 2 * items)


def test_an_input_without_rows_says_so(tmp_path: Path, cli: Cli) -> None:
    nodes = [helper.make_node("Add", ["x", "rate"], ["y"])]
    inputs = {"x": (FLOAT, ["batch"]), "rate": (FLOAT, [])}
    save_model(tmp_path / "double.onnx", nodes, inputs, {"y": (FLOAT, ["batch"])})
    np.savez(tmp_path / "data.npz", x=np.ones(3, np.float32))
    text = EACH.replace(
        """      - each: $items
        as: item
        steps:
          - {run: double, in: {x: $item}, out: {y: y}}
        collect: {y: ys}
""",
        """      - {do: scale, in: {x: $x, scale: 2}, out: rate}
      - {run: double, in: {x: $x, rate: $rate}, out: {y: ys}}
""",
    )
    (tmp_path / "m.yaml").write_text(text)
    done = cli("plan", tmp_path / "m.yaml")
    assert done.code == 1
    assert "is not by row, and $rate is one of each row. Write one value in its place" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("- each: $items", "- {do: unheard, in: {x: $items}, out: a}\n      - each: $items", "yolo_heads."),
        (
            "    outputs: {ys: $ys}",
            "    outputs: {ys: $ys}\n    reset: path",
            'must be a list, not the text "path". For example: ["path"]',
        ),
    ],
)
def test_messages_say_it_once_and_whole(tmp_path: Path, cli: Cli, old: str, new: str, words: str) -> None:
    (tmp_path / "m.yaml").write_text(EACH.replace(old, new, 1))
    done = cli("validate", tmp_path / "m.yaml")
    assert done.code == 1
    text = " ".join(done.out.split())
    assert words in text
    assert text.count("boxes_from_heatmap") <= 1
