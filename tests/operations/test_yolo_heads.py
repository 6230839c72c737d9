"""Heads that were exported undecoded, held against the formulas of yolov5's and yolov7's Detect, written cell by cell."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.family_models import with_metadata
from support.models import Shape, save_model

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

ANCHORS = [[10, 13, 16, 30, 33, 23], [30, 61, 62, 45, 59, 119], [116, 90, 156, 198, 373, 326]]
"""Those of yolov5s.yaml, for the strides 8, 16 and 32."""
FLAT = [number for head in ANCHORS for number in head]
CLASSES = 4


def heads(rows: int = 2) -> dict[str, np.ndarray]:
    """Return heads of a picture of 64 x 96, as Detect has them before it decodes: [rows, 3, ny, nx, 5 + classes]."""
    random = np.random.default_rng(5)
    sizes = {"p3": (8, 12), "p4": (4, 6), "p5": (2, 3)}
    return {name: random.normal(0, 2, (rows, 3, *size, 5 + CLASSES)).astype(np.float32) for name, size in sizes.items()}


def decoded(head: np.ndarray, stride: int, anchors: list[int]) -> np.ndarray:
    """Return what Detect makes of a head [3, ny, nx, values] of one picture, box by box.

    In both projects: xy = (sigmoid * 2 - 0.5 + grid) * stride, wh = (sigmoid * 2) ** 2 * anchor_grid.
    """
    boxes = []
    for anchor in range(3):
        for down in range(head.shape[1]):
            for across in range(head.shape[2]):
                s = [1 / (1 + math.exp(-float(value))) for value in head[anchor, down, across]]
                x, y = (s[0] * 2 - 0.5 + across) * stride, (s[1] * 2 - 0.5 + down) * stride
                wide, high = (s[2] * 2) ** 2 * anchors[2 * anchor], (s[3] * 2) ** 2 * anchors[2 * anchor + 1]
                boxes.append([x, y, wide, high, *s[4:]])
    return np.array(boxes)


def expected(given: Mapping[str, np.ndarray], row: int) -> np.ndarray:
    parts = zip(given.values(), (8, 16, 32), ANCHORS, strict=True)
    return np.concatenate([decoded(head[row], stride, anchors) for head, stride, anchors in parts])


def do(options: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    types = {key: TensorType(column[0].dtype.name, (ROWS, *column[0].shape)) for key, column in values.items()}
    (promised,) = OPERATIONS["yolo_heads"].infer(options, types)
    (found,) = OPERATIONS["yolo_heads"].build(options, types)(values)
    assert promised.shape == (ROWS, *found[0].shape)
    return found


def channels(head: np.ndarray) -> np.ndarray:
    """Return a head as its convolution gives it: Detect views [rows, 3 * values, ny, nx] and permutes."""
    rows, anchors, ny, nx, values = head.shape
    return head.transpose(0, 1, 4, 2, 3).reshape(rows, anchors * values, ny, nx)


def test_heads_are_decoded_as_detect_does() -> None:
    given = heads()
    found = do({"anchors": FLAT}, given)
    for row in range(2):
        np.testing.assert_allclose(found[row], expected(given, row), rtol=2e-5, atol=1e-4)


def test_heads_may_be_channels_or_half_precision_or_have_their_sigmoid_inside() -> None:
    given = heads()
    found = do({"anchors": FLAT}, given)
    np.testing.assert_array_equal(do({"anchors": FLAT}, {key: channels(head) for key, head in given.items()}), found)
    half = {key: head.astype(np.float16) for key, head in given.items()}
    np.testing.assert_allclose(do({"anchors": FLAT}, half), found, rtol=2e-2, atol=0.3)
    inside = {key: 1 / (1 + np.exp(-head)) for key, head in given.items()}
    np.testing.assert_allclose(do({"anchors": FLAT, "sigmoid": "inside"}, inside), found, rtol=1e-5, atol=1e-5)


def test_pictures_of_several_sizes_and_other_heads() -> None:
    given = heads()
    ragged = {key: [head[0], head[1, :, : head.shape[2] // 2]] for key, head in given.items()}
    full, cut = do_ragged(ragged)
    np.testing.assert_allclose(full, expected(given, 0), rtol=2e-5, atol=1e-4)
    np.testing.assert_allclose(cut, expected({k: np.stack([v[1]]) for k, v in ragged.items()}, 0), rtol=2e-5, atol=1e-4)
    fine = do({"anchors": ANCHORS[1]}, {"p4": given["p4"]})
    np.testing.assert_allclose(fine[0], decoded(given["p4"][0], 16, ANCHORS[1]), rtol=2e-5, atol=1e-4)


def do_ragged(values: Mapping[str, Any]) -> Any:
    types = {key: TensorType("float32", (ROWS, 3, None, None, 5 + CLASSES)) for key in values}
    (promised,) = OPERATIONS["yolo_heads"].infer({"anchors": FLAT}, types)
    assert promised.shape == (ROWS, None, 5 + CLASSES)
    return OPERATIONS["yolo_heads"].build({"anchors": FLAT}, types)(values)[0]


@pytest.mark.parametrize(
    ("options", "shapes", "words"),
    [
        ({}, {"p3": (3, 8, 8, 9)}, "it takes its anchors from anchors or model, and gets none"),
        ({"anchors": FLAT, "model": "m"}, {"p3": (3, 8, 8, 9)}, "and gets anchors and model"),
        ({"anchors": FLAT}, {}, "it takes one head at least, as p3, p4, p5, p6, and gets none"),
        ({"anchors": FLAT[:-1]}, {"p3": (3, 8, 8, 9)}, "these are 17 numbers for 1"),
        ({"anchors": FLAT[:6]}, {"p3": (2, 8, 8, 9)}, "heads have 2 anchors, and 3 are given for each"),
        ({"anchors": FLAT[:6]}, {"p3": (28, 8, 8)}, "a head has 28 channels, which are not the values of 3 anchors"),
        ({"anchors": FLAT[:6]}, {"p3": (3, 8, 8, 5)}, "values must be at least 6 and is 5"),
        ({"anchors": FLAT[:12]}, {"p3": (3, 8, 8, 9), "p4": (3, 4, 4, 8)}, "values is 9 in p3 and 8 in p4"),
        ({"anchors": FLAT[:12]}, {"p3": (3, 8, 8, 9), "p4": (24, 4, 4)}, "not the 9 values of 3 anchors"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], shapes: dict[str, tuple[int, ...]], words: str) -> None:
    types = {name: TensorType("float32", (ROWS, *shape)) for name, shape in shapes.items()}
    with pytest.raises(InapplicableError) as refused:
        OPERATIONS["yolo_heads"].infer(options, types)
    assert words in str(refused.value)


def model(folder: Path, **metadata: str) -> None:
    """Write a model that gives its inputs back: three heads with their convolutions' channels."""
    shapes: dict[str, Shape] = {
        "a": ["batch", 3, 8, 12, 9],
        "b": ["batch", 3, 4, 6, 9],
        "c": ["batch", 3, 2, 3, 9],
    }
    tensors = {name: (int(TensorProto.FLOAT), shape) for name, shape in shapes.items()}
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in tensors]
    save_model(folder / "m.onnx", nodes, tensors, {f"{name}_out": one for name, one in tensors.items()})
    with_metadata(folder / "m.onnx", **metadata)
    a, b, c = heads().values()
    np.savez(folder / "x.npz", a=a, b=b, c=c)


def write(folder: Path, anchors: str, names: str) -> Path:
    (folder / "m.yaml").write_text(f"""\
version: 1
models: {{m: {{path: m.onnx}}}}
pipelines:
  find:
    steps:
      - {{run: m, in: {{a: $a, b: $b, c: $c}}, out: {{a_out: p3, b_out: p4, c_out: p5}}}}
      - {{do: yolo_heads, in: {{p3: $p3, p4: $p4, p5: $p5, {anchors}}}, out: raw}}
      - {{do: yolo_decode, in: {{x: $raw, version: v5, score: 0.6}}, out: [boxes, scores, class]}}
      - {{do: labels, in: {{x: $class, {names}}}, out: names}}
    outputs: {{boxes: $boxes, class: $class, names: $names}}
jobs: {{run: {{pipeline: find, input: {{path: x.npz}}, output: {{path: out}}}}}}
""")
    return folder / "m.yaml"


def test_anchors_and_names_are_read_from_the_metadata(tmp_path: Path, cli: Cli) -> None:
    """Names as ultralytics writes them: a mapping as Python prints it."""
    model(tmp_path, anchors=json.dumps(ANCHORS), names="{0: 'person', 1: 'car', 2: \"dog's\", 3: 'cat'}")
    done = cli("apply", write(tmp_path, "model: m", "model: m"))
    assert done.code == 0, done.out + done.err
    names = ["person", "car", "dog's", "cat"]
    rows = [json.loads(line) for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    for place, row in enumerate(rows):
        values = expected(heads(), place)
        scores = values[:, 5:] * values[:, 4:5]
        kept = scores.max(axis=1) >= 0.6
        assert row["names"] == [names[index] for index in scores[kept].argmax(axis=1)]
        corners = np.concatenate([values[:, :2] - values[:, 2:4] / 2, values[:, :2] + values[:, 2:4] / 2], axis=1)
        np.testing.assert_allclose(row["boxes"], corners[kept], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("anchors", "names", "words"),
    [
        ("model: m", "model: n", 'The pipeline runs no model "n". Known: m.'),
        ("model: m, metadata: ankers", "model: m", 'Model "m" has no "ankers" in its metadata.'),
        ("model: m, metadata: task", "model: m", '"task" in the metadata of model "m" has no anchors.'),
        (
            "model: m",
            "model: m, metadata: task",
            '"task" in the metadata of model "m" has no names of all classes from 0 on.',
        ),
        ("model: m", "model: m, from: labels.txt", "labels takes one of from, model, and has from and model"),
        ("model: m", "metadata: names", "labels takes one of from, model, and has none of them"),
    ],
)
def test_what_the_metadata_does_not_have_is_refused(
    tmp_path: Path, cli: Cli, anchors: str, names: str, words: str
) -> None:
    model(tmp_path, anchors=json.dumps(ANCHORS), names="{0: 'a', 1: 'b', 2: 'c', 3: 'd'}", task="detect")
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\n")
    refused = cli("plan", write(tmp_path, anchors, names))
    text = " ".join((refused.out + refused.err).split())
    assert refused.code == 1
    assert words in text
    assert text.count("error[") == 1, text
