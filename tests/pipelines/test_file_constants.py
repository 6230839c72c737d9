"""Constants that steps take from files: their types, places, digests, and what is said of those that do not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import save_model

FLOAT = int(TensorProto.FLOAT)
STEPS = """\
      - {constant: f.npy, out: filters}
      - {constant: b.npy, out: bias}
      - {constant: a.npz, name: two, out: two}
      - {op: Range, in: {start: 0.0, limit: 3.0, delta: 1.0}, out: across}
      - {op: Mul, in: {A: $across, B: 2.0}, out: doubled}
      - {run: m, in: {x: $x, b: $bias}, out: {y: y}}
      - {op: MatMul, in: {A: $y, B: $filters}, out: z}
      - {op: Add, by_row: true, in: {A: $z, B: $doubled}, out: sum}
      - {op: Concat, by_row: true, in: {inputs: [$sum, $two]}, attributes: {axis: 0}, out: all}
"""
MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx, inputs: {{b: {{row_axis: none}}}}}}}}
pipelines:
  p:
    steps:
{steps}
    outputs: {{z: $z, all: $all}}
jobs: {{r: {{pipeline: p, input: {{path: x.npz}}, output: {{path: out}}}}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that adds `b` [4] to `x` [n, 4], the files of constants, and a manifest that takes them."""
    inputs: dict[str, tuple[int, list[int | str | None]]] = {"x": (FLOAT, ["n", 4]), "b": (FLOAT, [4])}
    node = helper.make_node("Add", ["x", "b"], ["y"])
    save_model(tmp_path / "m.onnx", [node], inputs, {"y": (FLOAT, ["n", 4])})
    np.save(tmp_path / "f.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    np.save(tmp_path / "b.npy", np.array([1, 2, 3, 4], np.float32))
    np.savez(tmp_path / "a.npz", two=np.array([1.5, 2.5], np.float32), other=np.array([7]))
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4), np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST.format(steps=STEPS))
    return tmp_path


def test_constants_of_files_reach_models_and_steps_of_any_line(folder: Path, cli: Cli) -> None:
    done = cli("apply", folder / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    first, *others = [json.loads(line) for line in (folder / "out/part-00000000.jsonl").read_text().splitlines()]
    assert first == {"z": [78, 92, 106], "all": [78, 94, 110, 1.5, 2.5]}
    assert others == [first, first]
    np.save(folder / "b.npy", np.array([1, 2, 3, 5], np.float32))
    changed = cli("plan", folder / "m.yaml")
    assert "finished-output" in changed.out, "its digest belongs to the deployment"


def test_lock_pins_files_of_constants_and_plan_compares_them(folder: Path, cli: Cli) -> None:
    assert cli("lock", folder / "m.yaml").code == 0
    assert (folder / "m.yaml").read_text().count("npy, sha256: ") == 2
    assert cli("lock", "--check", folder / "m.yaml").code == 0
    np.save(folder / "f.npy", np.zeros((4, 3), np.float32))
    assert "digest-mismatch" in cli("plan", folder / "m.yaml").out


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("name: two", "name: tow", 'a.npz holds no array tow. Did you mean "two"?'),
        (", name: two", "", "a.npz holds several arrays. Its names: two, other. Write name: …"),
        ("b.npy", "none.npy", "There is no file none.npy"),
        ("b.npy", "m.onnx", "m.onnx is not a .npy file"),
        ("b.npy", "nan.npy", "nan.npy holds NaN or infinities"),
        ("b.npy", "large.npy", "holds 1,048,577 values, and a constant has 1,048,576 at most"),
        ("f.npy", "double.npy", "Add a step before: {op: Cast"),
        (", inputs: {b: {row_axis: none}}", "", "say so: inputs: {b: {row_axis: none}} of the model"),
        (
            "{op: MatMul, in: {A: $y, B: $filters}, out: z}",
            "{do: softmax, in: {x: $filters}, out: z}",
            "not one of each",
        ),
    ],
)
def test_what_is_wrong_with_a_constant_is_said_at_its_step(
    folder: Path, cli: Cli, before: str, after: str, words: str
) -> None:
    np.save(folder / "nan.npy", np.full(4, np.nan, np.float32))
    np.save(folder / "large.npy", np.zeros(2**20 + 1, np.float32))
    np.save(folder / "double.npy", np.zeros((4, 3)))
    text = (folder / "m.yaml").read_text()
    assert before in text
    (folder / "m.yaml").write_text(text.replace(before, after))
    refused = cli("plan", folder / "m.yaml")
    assert refused.code == 1
    assert words in " ".join(refused.out.split())
