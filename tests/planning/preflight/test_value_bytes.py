"""What a forecast says of the values and items of a pipeline, by arithmetic: nothing is run."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.models import Shape, save_model

from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.steps import RunJob
from ortdeploy.planning.workflow import plan_manifests

FLOAT = int(TensorProto.FLOAT)
LENGTH, WINDOW, ROWS = 400_000, 4000, 5

MANIFEST = """\
version: 1
models: {m: {path: m.onnx}}
pipelines:
  p:
    steps:
STEPS
    outputs: {y: $y}
jobs: {run: {pipeline: p, input: {path: x.npy, columns: {x: array}}, batch: {size: 2}, output: {path: out}}}
"""
EACH = """\
      - {do: windows, in: {x: $x, size: 4000HOP}, out: w}
      - {each: $w, as: one, batch: BATCH,STATE steps: [{run: m, in: {x: $oneTAKES}, out: {y: zGIVES}}], collect: {z: y}}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shape: Shape = ["batch", "n"]
    node = helper.make_node("Relu", ["x"], ["y"])
    save_model(tmp_path / "m.onnx", [node], {"x": (FLOAT, shape)}, {"y": (FLOAT, shape)})
    np.save(tmp_path / "x.npy", np.zeros((ROWS, LENGTH), np.float32))
    return tmp_path


def forecast(folder: Path, steps: str) -> dict[str, int]:
    (folder / "m.yaml").write_text(MANIFEST.replace("STEPS", steps))
    (plan,) = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None).plans
    (job,) = (step for step in plan.steps if isinstance(step, RunJob))
    assert job.limits.forecast is not None
    return {part.what: part.size for part in job.limits.forecast.parts}


def each(batch: int, hop: str = "", state: str = "", takes: str = "", gives: str = "") -> str:
    text = EACH.replace("BATCH", str(batch)).replace("HOP", hop).replace("STATE", state)
    return text.replace("TAKES", takes).replace("GIVES", gives)


@pytest.mark.slow
def test_items_without_state_run_in_batches(folder: Path) -> None:
    """Of the 200 windows of two rows, as many as the batch has at most."""
    few, more, all_of_them = (forecast(folder, each(batch))["activations"] for batch in (10, 100, 4096))
    assert more == pytest.approx(10 * few, rel=0.02)
    assert all_of_them == pytest.approx(20 * few, rel=0.02)


@pytest.mark.slow
def test_items_with_state_run_beside_those_of_other_rows(folder: Path) -> None:
    """With an axis of rows in the state, those of two rows; else one at a time."""
    found = {}
    of_rows: list[Shape] = [["batch", 8], [1, 8]]
    for axes in of_rows:
        nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Tanh", ["h"], ["h2"])]
        x: Shape = ["batch", "n"]
        save_model(
            folder / "m.onnx", nodes, {"x": (FLOAT, x), "h": (FLOAT, axes)}, {"y": (FLOAT, x), "h2": (FLOAT, axes)}
        )
        steps = each(32, state=" state: {h: $h2},", takes=", h: $h", gives=", h2: h2")
        found[axes[0]] = forecast(folder, steps)["activations"]
    assert found["batch"] == pytest.approx(2 * found[1], rel=0.02)


@pytest.mark.parametrize(("hop", "copies"), [("", 1), (", hop: 1000", 1), (", context: 400", 1)])
def test_windows_are_one_copy_of_their_row_however_they_overlap(folder: Path, hop: str, copies: int) -> None:
    """Beside them are the items of a batch, and where they begin."""
    values = forecast(folder, each(10, hop))["values of steps"]
    assert values == pytest.approx(copies * 2 * LENGTH * 4 + 10 * WINDOW * 4, rel=0.1)


@pytest.mark.slow
def test_values_are_held_until_the_last_step_that_reads_them(folder: Path) -> None:
    row = 2 * LENGTH * 4
    line = "      - {do: scale, in: {x: $x, scale: 2}, out: a}\n      - {do: scale, in: {x: $a, scale: 2}, out: b}\n"
    run = "      - {run: m, in: {x: $b}, out: {y: y}}"
    assert forecast(folder, line + run)["values of steps"] == 2 * row
    third = "      - {do: scale, in: {x: $b, scale: 2}, out: c}\n"
    assert forecast(folder, line + third + run.replace("$b", "$c"))["values of steps"] == 2 * row
    of_first, late = third.replace("{x: $b", "{x: $a"), "\n" + third.replace("out: c", "out: d").rstrip()
    assert forecast(folder, line + of_first + run.replace("$b", "$c") + late)["values of steps"] == 3 * row


def test_open_sizes_count_as_nothing(folder: Path) -> None:
    steps = "      - {op: NonZero, by_row: true, in: {X: $x}, out: places}\n      - {run: m, in: {x: $x}, out: {y: y}}"
    assert "values of steps" not in forecast(folder, steps)


def test_a_list_of_known_length_is_written_as_one(folder: Path) -> None:
    (folder / "m.yaml").write_text(MANIFEST.replace("STEPS", each(10)))
    (plan,) = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None).plans
    (job,) = (step for step in plan.steps if isinstance(step, RunJob))
    assert job.output.row_shapes == ((LENGTH // WINDOW, WINDOW),)
