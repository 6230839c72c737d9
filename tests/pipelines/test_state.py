"""State that a row hands on to the next: sums over a stream, across parts, runs, rows that fail, files."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.effort import effort
from support.models import save_model

from ortdeploy.cli.main import main
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.state import State, pack_state, unpack_state
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.tensors.elements import numpy_dtype

FLOAT = TensorProto.FLOAT

MANIFEST = """\
version: 1
{top}
models:
  sum: {{path: sum.onnx}}
pipelines:
  listen:
    steps:
      - {{run: sum, in: {{x: $x, h: $h}}, out: {{y: y, h_after: h_after}}}}
    outputs: {{y: $y}}
    state: {{h: $h_after}}
{reset}
jobs:
  run:
    pipeline: listen
    input: {{path: {path}, columns: {{x: {column}}}, key: [row]}}
    batch: {{size: {size}}}
    output: {{path: out, rows_per_part: {part}}}
{more}"""


def save_sum(folder: Path) -> None:
    """A model that adds each row to what came before: h is [1, batch, 2], which is not rows first."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "first"], ["whole"]),
        helper.make_node("Add", ["whole", "h"], ["h_after"]),
        helper.make_node("Squeeze", ["h_after", "first"], ["y"]),
    ]
    whole: list[str | int | None] = [1, "batch", 2]
    row: list[str | int | None] = ["batch", 2]
    takes, makes = {"x": (FLOAT, row), "h": (FLOAT, whole)}, {"y": (FLOAT, row), "h_after": (FLOAT, whole)}
    save_model(folder / "sum.onnx", nodes, takes, makes, {"first": np.array([0], dtype=np.int64)})


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    save_sum(tmp_path)
    np.save(tmp_path / "data.npy", ROWS)
    return tmp_path


ROWS = np.random.default_rng(0).integers(-50, 50, size=(40, 2)).astype(np.float32)


def write(folder: Path, **parts: Any) -> Path:
    known = {"top": "", "reset": "", "path": "data.npy", "column": "array", "size": 4, "part": 8, "more": ""}
    (folder / "m.yaml").write_text(MANIFEST.format(**(known | parts)))
    return folder / "m.yaml"


def sums(folder: Path) -> np.ndarray:
    parts = sorted((folder / "out").glob("part-*"))
    return np.array([json.loads(line)["y"] for path in parts for line in path.read_text().splitlines()])


@pytest.mark.quick(1, 2)
@pytest.mark.parametrize(("size", "part"), [(1, 1), (4, 8), (7, 14), (64, 100)])
def test_each_row_takes_what_the_one_before_has_handed_on(stream: Path, cli: Cli, size: int, part: int) -> None:
    done = cli("apply", write(stream, size=size, part=part))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(sums(stream), ROWS.cumsum(axis=0))


def test_state_is_handed_on_beside_a_value_that_no_row_carries(stream: Path, cli: Cli) -> None:
    path = write(stream)
    text = (
        path.read_text()
        .replace("in: {x: $x, h: $h}", "in: {x: $shifted, h: $h}")
        .replace("key: [row]", "key: [row], values: {by: 1}")
    )
    add = "- {run: add, in: {a: $x, b: $by}, out: {c: shifted}}\n      - {run: sum"
    path.write_text(text.replace("- {run: sum", add).replace("models:\n", "models:\n  add: {path: add.onnx}\n"))
    values: dict[str, tuple[int, list[str | int | None]]] = {name: (FLOAT, ["batch", 2]) for name in "abc"}
    save_model(
        stream / "add.onnx",
        [helper.make_node("Add", ["a", "b"], ["c"])],
        {name: values[name] for name in "ab"},
        {"c": values["c"]},
    )
    done = cli("apply", path)
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(sums(stream), (ROWS + 1).cumsum(axis=0))


@pytest.mark.slow
def test_a_run_that_goes_on_takes_the_committed_state(stream: Path, cli: Cli) -> None:
    stopped = cli("apply", write(stream, top="limits: {disk: 700}"))
    assert stopped.code == 1
    some = len(sums(stream))
    assert 8 <= some < 40
    assert cli("apply", write(stream)).code == 0
    np.testing.assert_allclose(sums(stream), ROWS.cumsum(axis=0))


def test_a_run_that_ended_within_a_part_takes_the_state_of_what_was_through(
    stream: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: MemoryWatch) -> bool:
        raise OrtdeployError("enough")

    manifest = write(stream, part=100)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryWatch, "is_near", end)
        for kept in (4, 8):
            assert f"0 skipped; {kept} more rows are kept" in cli("apply", manifest).out
    assert cli("apply", manifest).code == 0
    np.testing.assert_allclose(sums(stream), ROWS.cumsum(axis=0))


@pytest.mark.slow
def test_new_files_go_on_where_the_last_one_ended(stream: Path, cli: Cli) -> None:
    (stream / "in").mkdir()
    np.save(stream / "in/a.npy", ROWS[:15])
    manifest = write(stream, path="in/*.npy")
    assert cli("apply", manifest).code == 0
    np.save(stream / "in/b.npy", ROWS[15:])
    assert cli("apply", manifest).code == 0
    np.testing.assert_allclose(sums(stream), ROWS.cumsum(axis=0))


@pytest.mark.slow
def test_state_begins_anew_with_every_file(stream: Path, cli: Cli) -> None:
    (stream / "in").mkdir()
    for name, rows in (("a", ROWS[:15]), ("b", ROWS[15:18]), ("c", ROWS[18:])):
        np.save(stream / f"in/{name}.npy", rows)
    done = cli("apply", write(stream, path="in/*.npy", reset="    reset: [path]"))
    assert done.code == 0, done.out + done.err
    expected = np.concatenate([rows.cumsum(axis=0) for rows in (ROWS[:15], ROWS[15:18], ROWS[18:])])
    np.testing.assert_allclose(sums(stream), expected)


def test_state_begins_anew_where_a_column_changes(stream: Path, cli: Cli) -> None:
    sensors = ["a"] * 3 + ["b"] * 5 + ["a"] * 2
    lines = [json.dumps({"x": row.tolist(), "sensor": one}) for row, one in zip(ROWS, sensors, strict=False)]
    (stream / "data.jsonl").write_text("\n".join(lines) + "\n")
    done = cli("apply", write(stream, path="data.jsonl", column="x", reset="    reset: [sensor]"))
    assert done.code == 0, done.out + done.err
    expected = np.concatenate([ROWS[begin:end].cumsum(axis=0) for begin, end in ((0, 3), (3, 8), (8, 10))])
    np.testing.assert_allclose(sums(stream), expected)


@settings(max_examples=effort(3, 30), deadline=None)
@given(bad=st.sets(st.integers(1, 19), max_size=6), size=st.integers(1, 9))
def test_a_row_that_fails_hands_nothing_on(bad: set[int], size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Wherever rows fail, the others are as if those were not there."""
    folder = tmp_path_factory.mktemp("stream")
    save_sum(folder)
    lines = [json.dumps({"x": [1.0] if row in bad else ROWS[row].tolist()}) for row in range(20)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    write(folder, path="data.jsonl", column="x", size=size, more="    errors: {max_failed: 20}\n")
    assert main(["apply", "-q", str(folder / "m.yaml"), "--log-file", str(folder / "log")]) == 0
    kept = [row for row in range(20) if row not in bad]
    np.testing.assert_allclose(sums(folder).reshape(-1, 2), ROWS[kept].cumsum(axis=0))


@pytest.mark.parametrize("size", [1, 4, 64])
def test_a_row_that_is_not_finite_hands_nothing_on(stream: Path, cli: Cli, size: int) -> None:
    bad = [5, 6, 30]
    rows = ROWS.copy()
    rows[bad, 0] = np.nan
    np.save(stream / "data.npy", rows)
    done = cli("apply", write(stream, size=size, more="    errors: {max_failed: 20, on_nan: fail}\n"))
    assert done.code == 0, done.out + done.err
    np.testing.assert_allclose(sums(stream), np.delete(ROWS, bad, axis=0).cumsum(axis=0))


@pytest.mark.parametrize("size", [1, 4, 64])
def test_a_row_whose_postprocess_fails_hands_nothing_on(stream: Path, cli: Cli, size: int) -> None:
    """Its state was advanced when the step after the model failed, and is taken back."""
    (stream / "labels.txt").write_text("the only one\n")
    steps = "    postprocess: [{argmax: y, as: which}, {labels: which, from: labels.txt, as: name}]\n"
    done = cli("apply", write(stream, size=size, more=f"{steps}    errors: {{max_failed: 40}}\n"))
    assert done.code == 0, done.out + done.err
    expected, total = [], np.zeros(2, np.float32)
    for row in ROWS:
        if total[0] + row[0] >= total[1] + row[1]:  # else the label is missing
            total = total + row
            expected.append(total)
    assert 0 < len(expected) < len(ROWS)
    np.testing.assert_allclose(sums(stream), expected)


def test_rows_that_memory_was_too_small_for_are_counted_once(
    stream: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = Component.run, count()

    def run_short_of_memory(component: Component, *arguments: Any) -> Any:
        if next(calls) == 6:
            raise MemoryError
        return run(component, *arguments)

    monkeypatch.setattr(Component, "run", run_short_of_memory)
    done = cli("apply", write(stream))
    assert done.code == 0, done.out + done.err
    assert next(calls) > len(ROWS) + 1
    np.testing.assert_allclose(sums(stream), ROWS.cumsum(axis=0))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{h: $h_after}", "{h: $nothing}", "No step makes $nothing"),
        ("{h: $h_after}", "{g: $h_after}", "No model takes $g"),
        ("{h: $h_after}", "{h: $y}", "$y is float32"),
        ("outputs: {y: $y}", "outputs: {y: $y, h: $h_after}", "cannot be a result of the row too"),
    ],
)
def test_state_that_does_not_fit_is_refused(stream: Path, cli: Cli, old: str, new: str, words: str) -> None:
    manifest = write(stream)
    manifest.write_text(manifest.read_text().replace(old, new))
    refused = cli("plan", manifest)
    assert refused.code == 1
    assert words in " ".join((refused.out + refused.err).split())


def test_failed_rows_are_not_run_by_themselves(stream: Path, cli: Cli) -> None:
    manifest = write(stream)
    assert cli("apply", manifest).code == 0
    refused = cli("retry", manifest, "--job", "run")
    assert refused.code == 1
    assert "cannot be run by themselves" in refused.out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int4"])
def test_a_state_reads_back(dtype: str) -> None:
    state = State(values={"h": np.arange(6).reshape(1, 2, 3).astype(numpy_dtype(dtype))}, key=("a", "ü"))
    again = unpack_state(pack_state(state))
    assert again.key == state.key
    assert again.values["h"].dtype == state.values["h"].dtype
    np.testing.assert_array_equal(again.values["h"], state.values["h"])
