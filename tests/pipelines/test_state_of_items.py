"""State in `each`: handed on from item to item of a row, anew with every row, rows beside each other or one at a time."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import Shape, save_model

from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.each import Each, Values
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep

FLOAT = TensorProto.FLOAT
LENGTHS = (9, 0, 4, 13, 4, 1, 8)
ROWS = [np.random.default_rng(length).integers(-99, 99, size=length).astype("<i2") for length in LENGTHS]

MANIFEST = """\
version: 1
models:
  sum: {{path: sum.onnx{model}}}
pipelines:
  listen:
    steps:
      - {{do: windows, in: {{x: $samples, size: 3, context: 1, last: {last}}}, out: [w, start]}}
      - each: $w
        as: item
        batch: {batch}
        state: {{h: $h_after}}
        steps:
          - {step}
        collect: {{{collect}}}
    outputs: {{ys: $ys, start: $start}}
jobs:
  run:
    pipeline: listen
    input: {{path: "in/*.wav", rate: 16000, key: [row]}}
    batch: {{size: {size}}}
    output: {{path: out, rows_per_part: 4}}
    errors: {{max_failed: 2}}
"""
STEP = "{run: sum, in: {x: $item, h: $h}, out: {y: y, h_after: h_after}}"
SCALED = "{do: scale, in: {x: $h, scale: 2.0}, out: twice}"


def save_sum(folder: Path, rows: int | str | None = "batch") -> None:
    """y [rows, 1] = the sum of all windows [rows, time] so far: the state is [2, rows, 1], this sum and twice of it."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "last"], ["of_window"], keepdims=1),
        helper.make_node("Unsqueeze", ["of_window", "first"], ["whole"]),
        helper.make_node("Mul", ["whole", "factors"], ["both"]),
        helper.make_node("Add", ["both", "h"], ["h_after"]),
        helper.make_node("Gather", ["h_after", "zero"], ["y"], axis=0),
    ]
    weights = {
        "first": np.array([0]),
        "last": np.array([-1]),
        "zero": np.array(0),
        "factors": np.array([1, 2], np.float32).reshape(2, 1, 1),
    }
    window: Shape = [rows, 4 if isinstance(rows, int) else None]
    state: Shape = [2, rows, 1]
    takes, makes = {"x": (FLOAT, window), "h": (FLOAT, state)}, {"y": (FLOAT, [rows, 1]), "h_after": (FLOAT, state)}
    save_model(folder / "sum.onnx", nodes, takes, makes, weights)


def expected(row: np.ndarray, last: str = "pad") -> np.ndarray:
    """Return the sums [windows, 1] of windows of 3 with 1 of before."""
    padded = np.concatenate([[0], row / 32768, [0, 0, 0]])
    count = len(row) // 3 if last == "drop" else -(-len(row) // 3)
    sums = np.cumsum([padded[3 * place : 3 * place + 4].sum() for place in range(count)])
    return np.asarray(sums).reshape(-1, 1)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    save_sum(tmp_path)
    (tmp_path / "in").mkdir()
    for place, row in enumerate(ROWS):
        save_wav(tmp_path / f"in/{place}.wav", row)
    return tmp_path


def save_wav(path: Path, row: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(row.tobytes())


def write(folder: Path, **parts: Any) -> Path:
    known = {"model": "", "batch": 32, "size": 4, "last": "pad", "step": STEP, "collect": "y: ys"}
    (folder / "m.yaml").write_text(MANIFEST.format(**(known | parts)))
    return folder / "m.yaml"


def results(folder: Path) -> list[dict[str, Any]]:
    parts = sorted((folder / "out").glob("part-*"))
    return [json.loads(line) for path in parts for line in path.read_text().splitlines()]


def check(folder: Path, last: str = "pad") -> None:
    found = results(folder)
    assert [one["row"] for one in found] == list(range(len(ROWS)))
    for one, row in zip(found, ROWS, strict=True):
        sums = expected(row, last)
        np.testing.assert_allclose(np.reshape(one["ys"], (-1, 1)), sums, atol=1e-7)
        assert one["start"] == [3 * place for place in range(len(sums))]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each run of the model has."""
    seen: list[int] = []
    run = Component.run

    def counted(component: Component, outputs: Any, feeds: Any, adapters: Any) -> Any:
        seen.append(len(feeds["x"]))
        return run(component, outputs, feeds, adapters)

    monkeypatch.setattr(Component, "run", counted)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "size"), [(1, 1), (2, 4), (32, 7)])
@pytest.mark.parametrize("last", ["pad", "drop", "short"])
def test_state_begins_anew_with_every_row(recordings: Path, cli: Cli, batch: int, size: int, last: str) -> None:
    done = cli("apply", write(recordings, batch=batch, size=size, last=last))
    assert done.code == 0, done.out + done.err
    check(recordings, last)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "model", "beside"),
    [
        ("batch", "", True),
        (None, "", False),
        (None, ", inputs: {h: {row_axis: 1}}", True),
        (1, "", False),
    ],
)
def test_rows_run_beside_each_other_where_the_axis_of_the_state_is_known(
    recordings: Path, cli: Cli, runs: list[int], rows: Any, model: str, beside: bool
) -> None:
    for place in range(len(ROWS)):
        save_wav(recordings / f"in/{place}.wav", ROWS[3])
    save_sum(recordings, rows)
    done = cli("apply", write(recordings, model=model))
    assert done.code == 0, done.out + done.err
    said = "up to 32 rows beside each other" if beside else "one row at a time"
    assert f"items of $w hand on h: {said}" in done.out
    for one in results(recordings):
        np.testing.assert_allclose(one["ys"], expected(ROWS[3]), atol=1e-7)
    assert (max(runs) == 4) == beside


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    batch=st.integers(1, 4),
    by_row=st.booleans(),
    alike=st.booleans(),
)
def test_rows_of_several_lengths_give_what_each_gives_alone(
    lengths: list[int], batch: int, by_row: bool, alike: bool
) -> None:
    lengths = [lengths[0]] * len(lengths) if alike else lengths
    rows = [np.arange(1.0, length + 1) * 10**place for place, length in enumerate(lengths)]
    sizes: list[int] = []

    def add(values: Values, going: int) -> Values:
        sizes.append(going)
        assert np.shape(values["h"])[: by_row + 1] == ((going, 2) if by_row else (2,))
        return {"h_after": values["h"] + np.reshape(values["x"], (-1, 1)[: by_row + 1]), "seen": values["x"] * 1}

    each = Each(each_step(batch, by_row=by_row), [add, total_of])
    found = each({"w": np.stack(rows) if alike else rows, "unread": [0] * len(rows)}, len(rows))
    for row, sums, seen in zip(rows, found["sums"], found["all"], strict=True):
        np.testing.assert_allclose(np.reshape(sums, -1), np.cumsum(row))
        np.testing.assert_array_equal(seen, row)
    assert sum(sizes) == sum(lengths)
    assert max(sizes, default=0) <= (batch if by_row else 1)


def total_of(values: Values, _going: int) -> Values:
    """Return the first of the two numbers of a state, for each row."""
    return {"total": np.reshape(values["h_after"], (-1, 2))[:, 0]}


def each_step(batch: int, *, by_row: bool) -> PlannedWireStep:
    """An each with state over the numbers that `w` lists."""
    numbers = {
        name: PlannedValue(name=name, dtype="float64", shape=("rows", None), layout=None) for name in ("sums", "all")
    }
    state = PlannedValue(name="h", dtype="float64", shape=("rows", 2) if by_row else (2,), layout=None)
    return PlannedWireStep(
        kind="each",
        name="w",
        wires=(),
        takes=(),
        options={},
        outputs=(("total", "sums"), ("seen", "all")),
        makes=tuple(numbers.values()),
        adapters=(),
        item="x",
        batch=batch,
        most=None,
        steps=(),
        state=(("h", "h_after"),),
        first_state=(state,),
        state_by_row=by_row,
    )


def test_what_is_handed_on_may_be_collected_where_it_has_rows(recordings: Path, cli: Cli) -> None:
    manifest = write(recordings, collect="y: ys, h_after: hs")
    manifest.write_text(manifest.read_text().replace("outputs: {ys: $ys", "outputs: {hs: $hs, ys: $ys"))
    done = cli("apply", manifest)
    assert done.code == 0, done.out + done.err
    check(recordings)
    for one, row in zip(results(recordings), ROWS, strict=True):
        np.testing.assert_allclose(np.reshape(one["hs"], (-1, 2)), expected(row) * [[1, 2]], atol=1e-7)


@pytest.mark.slow
def test_a_recording_that_cannot_be_read_fails_alone(recordings: Path, cli: Cli) -> None:
    (recordings / "in/4.wav").write_bytes(b"no recording")
    manifest = write(recordings)
    assert cli("apply", manifest).code == 0
    assert [one["row"] for one in results(recordings)] == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    ("rows", "parts", "words"),
    [
        ("batch", {"step": STEP.replace("$h}", "$g}")}, "No model takes $h"),
        ("batch", {"step": STEP.replace("h_after: h_after", "h_after: after")}, "No step makes $h_after"),
        ("batch", {"step": STEP.replace("y: y, h_after: h_after", "y: h_after, h_after: y")}, "$h_after is float32"),
        ("batch", {"step": f"{SCALED}\n          - {STEP}"}, "$h is state, which goes from a model to a model."),
        (None, {"collect": "y: ys, h_after: hs"}, "is handed on whole, and cannot be a result of the row too"),
        ("batch", {"step": STEP.replace("h_after: h_after", "h_after: h_after, y: h")}, "Key written twice"),
    ],
)
def test_state_that_does_not_fit_is_refused(
    recordings: Path, cli: Cli, rows: Any, parts: dict[str, str], words: str
) -> None:
    save_sum(recordings, rows)
    refused = cli("plan", write(recordings, **parts))
    assert refused.code == 1
    said = " ".join((refused.out + refused.err).split())
    assert words in said
    assert 'Nothing feeds input "h"' not in said  # it is fed, and by no column


@pytest.mark.slow
def test_recordings_of_several_lengths_run_together(recordings: Path, cli: Cli, runs: list[int]) -> None:
    done = cli("apply", write(recordings, size=7))
    assert done.code == 0, done.out + done.err
    check(recordings)
    assert max(runs) == 6  # all but the one without samples
    assert json.loads((recordings / "out/_run.json").read_text())["rows"]["committed"] == len(ROWS)


@pytest.mark.slow
def test_a_recording_of_another_shape_fails_alone_among_several_lengths(recordings: Path, cli: Cli) -> None:
    with wave.open(str(recordings / "in/2.wav"), "wb") as file:
        file.setparams((2, 2, 16000, 0, "NONE", ""))
        file.writeframes(ROWS[0][:8].tobytes())
    assert cli("apply", write(recordings, size=7)).code == 0
    assert [one["row"] for one in results(recordings)] == [0, 1, 3, 4, 5, 6]
    (failed,) = [json.loads(line) for line in (recordings / "out/_failed.jsonl").read_text().splitlines()]
    assert failed["row"] == 2
    assert "input samples takes [rows, ?] and gets [1, 2, 4]" in failed["message"]
