"""Batches of items in an each where memory runs out: halved from there on, with the same results."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import run_fork
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import Shape, save_model

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError
from ortdeploy.pipelines.each import Each, Values
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep

FLOAT = int(TensorProto.FLOAT)


def doubled(batch: int) -> PlannedWireStep:
    """An each over the numbers that `w` lists, whose inner step gives `y`."""
    made = PlannedValue(name="ys", dtype="int64", shape=("rows", None), layout=None)
    return PlannedWireStep(
        kind="each", name="w", wires=(), takes=(), options={}, outputs=(("y", "ys"),), makes=(made,), adapters=(),
        item="x", batch=batch, most=None, steps=(),
    )  # fmt: skip


class Double:
    """An inner step that has memory for some items, and fails otherwise."""

    def __init__(self, most: int, error: type[Exception]) -> None:
        self.most, self.error = most, error
        self.sizes: list[int] = []

    def __call__(self, values: Values, rows: int) -> Values:
        self.sizes.append(rows)
        if rows > self.most:
            raise self.error("no memory")
        return {"y": np.asarray(values["x"]) * 2}


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    batch=st.integers(1, 16),
    most=st.integers(1, 16),
    error=st.sampled_from([OutOfMemoryError, MemoryError]),
)
def test_items_run_in_batches_that_fit(counts: list[int], batch: int, most: int, error: type[Exception]) -> None:
    rows = [np.arange(count) + 10 * row for row, count in enumerate(counts)]
    inner = Double(most, error)
    each = Each(doubled(batch), [inner])
    for _ in range(2):
        (found,) = each({"w": list(rows)}, len(rows)).values()
        assert [np.asarray(row).tolist() for row in found] == [(row * 2).tolist() for row in rows]
    failed = [size for size in inner.sizes if size > most]
    assert each.halvings == len(failed)
    assert failed == sorted(set(failed), reverse=True)  # what did not fit is not tried again
    assert sum(size for size in inner.sizes if size <= most) == 2 * sum(counts)


def test_an_item_that_has_no_room_alone_fails() -> None:
    each = Each(doubled(8), [Double(0, OutOfMemoryError)])
    with pytest.raises(OutOfMemoryError):
        each({"w": [np.arange(5)]}, 1)


def test_other_failures_are_not_tried_again() -> None:
    inner = Double(2, OrtdeployError)
    with pytest.raises(OrtdeployError, match="no memory"):
        Each(doubled(8), [inner])({"w": [np.arange(5)]}, 1)
    assert inner.sizes == [5]


def test_the_report_says_that_items_were_halved(tmp_path: Path) -> None:
    """One row of 64 items, of which each takes a mebibyte, in an arena of 24."""
    shape: Shape = ["batch", 8]
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["wide"]),
        helper.make_node("Sin", ["wide"], ["waves"]),
        helper.make_node("ReduceMax", ["waves", "axis"], ["y"], keepdims=0),
    ]
    constants = {"times": np.array([1, 32768]), "axis": np.array([1])}
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, ["batch"])}, constants, opset=18)
    x = np.random.default_rng(0).standard_normal((2, 64, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "m.yaml").write_text("""\
version: 1
shared_arena: {max: 24MiB, extend_strategy: same_as_requested}
models: {m: {path: m.onnx, memory: {arena: shared}}}
pipelines:
  p:
    steps:
      - {each: $w, as: one, batch: 64, steps: [{run: m, in: {x: $one}, out: {y: y}}], collect: {y: ys}}
    outputs: {ys: $ys}
jobs: {run: {pipeline: p, input: {path: x.npy, columns: {w: array}}, output: {path: out}}}
""")
    done = run_fork(["apply", "m.yaml"], cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    rows = [json.loads(line)["ys"] for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(rows, np.sin(x).max(axis=2), rtol=1e-5, atol=1e-6)
    report = json.loads((tmp_path / "out/_run.json").read_text())
    assert report["sessions"][0]["batch_size"] == 32  # rows are not halved for it
    assert "batch.items_halved" in done.err
    assert report["row_independence"]["batches_halved"] > 0
