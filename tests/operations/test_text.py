"""Text from a recogniser: where its letters come from, the blank, repeats and the confidence."""

import json
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
