"""Text from a recogniser: where its letters come from, the blank, repeats and the confidence."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import save_model
from support.operation_references import FOLDER

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

LETTERS = "abc"


def read(logits: np.ndarray, **options: Any) -> tuple[list[str], list[float]]:
    types = {"logits": TensorType(logits.dtype.name, (ROWS, *logits.shape[1:]))}
    OPERATIONS["ctc_greedy"].infer(options, types)
    text, confidence = OPERATIONS["ctc_greedy"].build(options, types)({"logits": logits})
    return list(text), [float(one) for one in confidence]


def shares(*path: int, classes: int = 4, at: float = 0.7) -> np.ndarray:
    """Return probabilities [1, steps, classes] that prefer the classes of a path."""
    table = np.full((1, len(path), classes), (1 - at) / (classes - 1), np.float32)
    table[0, range(len(path)), path] = at
    return table


@given(st.lists(st.integers(0, 3), max_size=12), st.sampled_from([0, -1, 1, 3]))
def test_repeats_count_once_unless_a_blank_is_between_them(path: list[int], blank: int) -> None:
    letters = list(LETTERS)
    at = blank if blank >= 0 else 3
    letters.insert(at, "")
    before = [None, *path]
    wanted = "".join(letters[one] for one, last in zip(path, before, strict=False) if one != last)
    assert read(shares(*path), alphabet=LETTERS, blank=blank)[0] == [wanted]


def test_the_confidence_is_the_mean_of_the_letters() -> None:
    table = shares(1, 1, 0, 2)
    table[0, 1] = [0, 1, 0, 0]  # a repeat does not count
    text, sure = read(table, alphabet=LETTERS)
    assert text == ["ab"]
    assert sure == pytest.approx([0.7])
    assert read(shares(0, 0), alphabet=LETTERS) == ([""], [0])
    assert read(shares(1, 2).astype(np.float16), alphabet=LETTERS)[1] == [pytest.approx(0.7, abs=1e-3)]
    text, sure = read(np.log(shares(1, 0, 2)), alphabet=LETTERS)
    assert text == ["ab"]
    assert sure == pytest.approx([0.7])
    _, sure = read(np.array([[[0, 5, 0, 0]]], np.float32), alphabet=LETTERS)
    assert sure == [pytest.approx(np.exp(5) / (np.exp(5) + 3), rel=1e-5)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "its letters from alphabet, from or model, and gets none"),
        ({"alphabet": "abc", "from": "keys.txt"}, "gets alphabet and from"),
        ({"alphabet": "ab"}, "4 classes, and the alphabet has 2 letters"),
        ({"alphabet": "ab", "append": "  "}, "4 classes, and the alphabet has 4 letters"),
        ({"alphabet": "abc", "blank": 4}, "blank is 4, and the last class is 3"),
    ],
)
def test_letters_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InapplicableError, match=words):
        OPERATIONS["ctc_greedy"].infer(options, {"logits": TensorType("float32", (ROWS, None, 4))})


@pytest.fixture(scope="module")
def rapidocr() -> Mapping[str, np.ndarray]:
    with np.load(FOLDER / "rapidocr.npz") as arrays:
        return dict(arrays)


def test_texts_and_confidences_are_those_of_rapidocr(rapidocr: Mapping[str, np.ndarray]) -> None:
    texts, sure = read(rapidocr["shares"], alphabet="abcde", append=" ")
    assert texts == rapidocr["texts"].tolist()
    np.testing.assert_allclose(sure, rapidocr["confidences"], atol=2e-5)


def boxes_of(heat: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    image = np.zeros((1, 240, 384, 1), np.uint8)
    types = {"heat": TensorType("float16", (ROWS, *heat.shape)), "image": TensorType("uint8", (ROWS, *image.shape[1:]))}
    boxes, scores = OPERATIONS["text_boxes"].build(options, types)({"heat": heat[None], "image": image})
    return boxes[0], scores[0]


@pytest.mark.parametrize("dilated", [True, False])
def test_rotated_boxes_are_those_of_rapidocr(rapidocr: Mapping[str, np.ndarray], *, dilated: bool) -> None:
    for seed, heat in enumerate(rapidocr["maps"]):
        boxes, scores = boxes_of(heat, dilate=1 + dilated)
        theirs = rapidocr[f"boxes_{dilated}_{seed}"]
        assert len(theirs) > 0
        np.testing.assert_allclose(boxes, theirs, atol=3)  # a pixel of the map is three of the image
        np.testing.assert_allclose(np.sort(scores), rapidocr[f"scores_{dilated}_{seed}"], atol=0.03)


def test_boxes_without_an_image_are_in_pixels_of_the_map() -> None:
    heat = np.zeros((1, 1, 40, 60), np.float32)
    heat[0, 0, 10:21, 20:41] = 0.9
    heat[0, 0, 35, 5] = 0.9  # too small
    types = {"heat": TensorType("float32", (ROWS, 1, 40, 60))}
    (boxes, *_), (scores, *_) = OPERATIONS["text_boxes"].build({"dilate": 1, "unclip": 0.6}, types)({"heat": heat})
    assert boxes.tolist() == [[[18, 8], [42, 8], [42, 22], [18, 22]]]  # grown by 200 * 0.6 / 60
    assert scores == pytest.approx([0.9])
    for least, unclip in ((0.95, 1.6), (0.5, 1.6)):
        found, _ = OPERATIONS["text_boxes"].build({"score": least, "unclip": unclip}, types)({"heat": heat})
        assert np.shape(found[0]) == ((0 if least > 0.9 else 1), 4, 2)
    found, _ = OPERATIONS["text_boxes"].build({}, types)({"heat": heat * 0})
    assert np.shape(found[0]) == (0, 4, 2)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_crops_of_corners_are_those_of_rapidocr(rapidocr: Mapping[str, np.ndarray], layout: str) -> None:
    axes = (2, 0, 1) if layout == "NCHW" else (0, 1, 2)
    image, corners = rapidocr["image"].transpose(axes), rapidocr["corners"]
    types = {
        "image": TensorType("uint8", (ROWS, *image.shape), layout),
        "boxes": TensorType("float32", (ROWS, None, 4, 2)),
    }
    (made,) = OPERATIONS["crop"].build({}, types)({"image": image[None], "boxes": corners[None]})
    for place, one in enumerate(made[0]):
        theirs = rapidocr[f"crop_{place}"].transpose(axes)
        assert one.shape == theirs.shape
        assert np.abs(one.astype(int) - theirs).max() <= 1
    for bad in (np.zeros((4, 2)), [[0, 0], [9, 0], [18, 0], [27, 0]]):
        with pytest.raises(ValueError, match="no area"):
            OPERATIONS["crop"].build({}, types)({"image": image[None], "boxes": np.array([[bad]], np.float32)})


MANIFEST = """\
version: 1
models:
  reader: {{path: reader.onnx}}
pipelines:
  p:
    steps:
      - {{run: reader, in: {{x: $x}}, out: {{y: y}}}}
      - {{do: ctc_greedy, in: {{logits: $y, {letters}}}, out: [text, sure]}}
    outputs: {{text: $text, sure: $sure}}
jobs:
  run:
    pipeline: p
    input: {{path: data.npy}}
    output: {{path: out}}
"""


def reader(folder: Path, letters: str, metadata: dict[str, str], keys: str = "") -> None:
    """Write a model that gives what it gets, a text file with letters, rows and a manifest."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    sizes: list[int | str | None] = ["batch", "steps", 5]
    kind: int = TensorProto.FLOAT
    save_model(folder / "reader.onnx", nodes, {"x": (kind, sizes)}, {"y": (kind, sizes)})
    model = onnx.load(folder / "reader.onnx")
    helper.set_model_props(model, metadata)
    onnx.save(model, folder / "reader.onnx")
    (folder / "keys.txt").write_text(keys, encoding="utf-8")
    np.save(folder / "data.npy", np.concatenate([shares(1, 1, 0, 4, classes=5), shares(2, 0, 2, 3, classes=5)]))
    (folder / "m.yaml").write_text(MANIFEST.format(letters=letters))


@pytest.mark.parametrize(
    ("letters", "metadata", "keys"),
    [
        ("from: keys.txt", {}, "a\r\nbc\r\n\u2028\r\n \r\n"),
        ("from: keys.txt, append: ' '", {}, "a\nbc\n\u2028"),
        ("model: reader, append: ' '", {"character": "a\nbc\n#"}, ""),
        ("model: reader, metadata: vocabulary", {"vocabulary": "a\nbc\n#\n "}, ""),
    ],
)
def test_letters_come_from_a_file_or_from_the_model(
    tmp_path: Path, cli: Cli, letters: str, metadata: dict[str, str], keys: str
) -> None:
    reader(tmp_path, letters, metadata, keys)
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.out + done.err
    rows = [json.loads(line) for line in (tmp_path / "out/part-00000000.jsonl").read_bytes().splitlines()]
    assert [row["text"] for row in rows] == ["a ", "bcbc" + ("\u2028" if keys else "#")]
    assert [row["sure"] for row in rows] == pytest.approx([0.7, 0.7])
    (tmp_path / "keys.txt").write_text("x\ny\nz\n ")
    assert cli("apply", tmp_path / "m.yaml").code == (1 if "from" in letters else 0)


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("from: other.txt", "There is no file other.txt"),
        ("from: keys.txt", "keys.txt holds no lines"),
        ("model: raeder", 'runs no model "raeder". Did you mean "reader"?'),
        ("model: reader, metadata: charakter", 'no "charakter" in its metadata. Did you mean "character"?'),
        ("model: reader", "5 classes, and the alphabet has 3 letters and a blank"),
    ],
)
def test_letters_that_are_not_there_are_refused_by_plan(tmp_path: Path, cli: Cli, letters: str, words: str) -> None:
    reader(tmp_path, letters, {"character": "a\nb\nc"})
    done = cli("plan", tmp_path / "m.yaml")
    text = " ".join((done.out + done.err).split())
    assert done.code == 1
    assert words in text
    assert text.count("error[") == 1


STEPS = """\
version: 1
models:
  reader: {path: reader.onnx}
pipelines:
  p:
    steps:
      - {run: reader, in: {x: $x}, out: {y: y}}
      - {do: top_k, in: {x: $y, k: 2}, out: [best, shares]}
      - {do: labels, in: {x: $best, from: keys.txt}, out: names}
      - {do: threshold, in: {x: $shares, at: 0.5}, out: sure}
      - {do: argmax, in: {x: $y}, out: [first, share]}
    outputs: {names: $names, sure: $sure, first: $first, share: $share}
jobs:
  run:
    pipeline: p
    input: {path: data.npy}
    output: {path: out}
"""


def test_postprocess_steps_are_operations(tmp_path: Path, cli: Cli) -> None:
    reader(tmp_path, "alphabet: abcd", {}, "none\none\ntwo\nthree\nfour\n")
    (tmp_path / "m.yaml").write_text(STEPS)
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.out + done.err
    row = json.loads((tmp_path / "out/part-00000000.jsonl").read_text().splitlines()[0])
    assert row["names"] == [["one", "none"], ["one", "none"], ["none", "one"], ["four", "none"]]
    assert row["sure"] == [[True, False]] * 4
    assert (row["first"], row["share"]) == ([1, 1, 0, 4], pytest.approx([0.7] * 4))
