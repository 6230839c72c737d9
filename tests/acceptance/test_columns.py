"""Tables with many columns: named by patterns, cast as a whole, with gaps; against what numpy makes of the same table."""

import csv
import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Cli, read_rows
from onnx import TensorProto, helper
from pyarrow import parquet
from support.models import save_model

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: {data}, columns: {{x: {columns}}}, {missing}}}
    prepare: {{x: [{prepare}]}}
    output: {{path: out}}
"""
TABLE = {
    "f10": pa.array([1.5, None, 3.5], pa.float64()),
    "label": pa.array(["a", "b", "c"]),
    "f2": pa.array([1, 2, None], pa.int64()),
    "flag": pa.array([True, None, False]),
    "f1": pa.array([7, 8, 9], pa.int32()),
}


def deploy(folder: Path, data: str, **said: Any) -> Path:
    settings = {"columns": "[f*]", "missing": "missing: nan", "prepare": "{cast: float32}"} | said
    kind: tuple[int, list[int | str | None]] = (TensorProto.FLOAT, ["batch", "features"])
    save_model(folder / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    (folder / "m.yaml").write_text(MANIFEST.format(data=data, **settings))
    return folder / "m.yaml"


def write(folder: Path, form: str) -> str:
    columns = {name: column.to_pylist() for name, column in TABLE.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if form == "parquet":
        parquet.write_table(pa.table(TABLE), folder / "t.parquet")
    elif form == "jsonl":
        (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    else:
        cells = [
            ["" if cell is None else str(cell * 1 if cell in {True, False} else cell) for cell in row.values()]
            for row in rows
        ]
        (folder / "t.csv").write_text("\n".join(",".join(line) for line in [list(columns), *cells]))
    return f"t.{form}"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_columns_of_several_types_with_gaps_reach_the_model_as_one_vector(cli: Cli, tmp_path: Path, form: str) -> None:
    path = deploy(tmp_path, write(tmp_path, form))
    assert "x float32 [batch, features] ← f10, f2, flag, f1 → cast" in cli("plan", path).out
    done = cli("apply", path, "-q")
    assert done.code == 0, done.out + done.err
    names = ("f10", "f2", "flag", "f1")
    wanted = np.array([[float(v) if v is not None else np.nan for v in TABLE[name].to_pylist()] for name in names]).T
    np.testing.assert_array_equal(np.array([row["y"] for row in read_rows(tmp_path / "out")], float), wanted)


@pytest.mark.slow
def test_a_pattern_of_one_column_makes_vectors_too(cli: Cli, tmp_path: Path) -> None:
    path = deploy(tmp_path, write(tmp_path, "parquet"), columns="f1*")
    assert cli("apply", deploy(tmp_path, "t.parquet", columns="[f10*]"), "-q").code == 0
    assert [row["y"] for row in read_rows(tmp_path / "out")] == [[1.5], [None], [3.5]]
    assert "← f10, f1" in cli("plan", deploy(path.parent, "t.parquet", columns="f1*"), "--new-run").out


def test_many_columns_are_counted_by_the_plan(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",".join(f"f{n}" for n in range(300)) + "\n" + ",".join(["1"] * 300))
    said = cli("plan", deploy(tmp_path, "t.csv", missing="", prepare=""))
    assert "← f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, … f298, f299 (300 columns)" in said.out
    whole = json.loads(cli("plan", tmp_path / "m.yaml", "--format", "json").out)
    (job,) = (step for step in whole["steps"] if "inputs" in step)
    assert job["inputs"][0]["columns"] == [f"f{n}" for n in range(300)]


@pytest.mark.parametrize(
    ("said", "rule", "words"),
    [
        ({"columns": "[g*]"}, "missing-column", 'no column that matches "g*"'),
        ({"columns": "[fl*, label]"}, "unusable-filler", '"label" feeds input "x"'),
        (
            {"columns": "[f1, label]", "missing": "", "prepare": ""},
            "input-type-mismatch",
            "If each text is a number, add a step",
        ),
        ({"columns": "[f1, f10]", "missing": "", "prepare": ""}, "input-type-mismatch", "gets float64. Add a step"),
        ({"missing": "missing: {f2: 0.5, f10: nan, flag: nan}"}, "unusable-filler", "takes int64, and 0.5"),
    ],
)
def test_what_cannot_work_is_said_by_the_plan(
    cli: Cli, tmp_path: Path, said: dict[str, str], rule: str, words: str
) -> None:
    found = cli("plan", deploy(tmp_path, write(tmp_path, "parquet"), **said), "--format", "json").json["diagnostics"]
    errors = {one["rule"]: one["detail"] for one in found if one["severity"] == "error"}
    assert list(errors) == [rule]
    assert words in errors[rule]


def test_text_that_is_no_number_fails_its_row_alone(cli: Cli, tmp_path: Path) -> None:
    numbers = {"a": pa.array(["1", "x", "3"]), "b": pa.array([1, 2, 3])}
    parquet.write_table(pa.table(numbers), tmp_path / "t.parquet")
    path = deploy(tmp_path, "t.parquet", columns='["?"]', missing="")
    path.write_text(path.read_text() + "    errors: {max_failed: 1}\n")
    assert cli("apply", path, "-q").code == 0
    assert [row["y"] for row in read_rows(tmp_path / "out")] == [[1.0, 1.0], [3.0, 3.0]]
    assert "could not convert" in (tmp_path / "out/_failed.jsonl").read_text()


def test_columns_that_differ_in_shape_are_named(cli: Cli, tmp_path: Path) -> None:
    table = {"f1": pa.array([1.0, 2.0], pa.float32()), "f2": pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1))}
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    said = cli("plan", deploy(tmp_path, "t.parquet", missing="", prepare=""))
    assert said.code == 1
    assert "differ in shape: f1 [], f2 [1]" in " ".join(said.out.split())


PIPELINE = """\
version: 1
models: {m: {path: m.onnx}}
pipelines:
  p:
    steps:
      - {do: l2_normalize, in: {x: $features}, out: unit}
      - {run: m, in: {x: $unit}, out: {y: y}}
    outputs: {y: $y}
jobs:
  run:
    pipeline: p
    input: {path: t.parquet, columns: {features: [f1*, f2]}, missing: {"f*": 0}}
    prepare: {features: [{cast: float32}]}
    output: {path: out}
"""


def test_a_pipeline_takes_columns_by_pattern(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    deploy(tmp_path, "t.parquet").write_text(PIPELINE)
    done = cli("apply", tmp_path / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    wanted = np.array([[1.5, 7, 1], [0, 8, 2], [3.5, 9, 0]])
    made = [row["y"] for row in read_rows(tmp_path / "out")]
    np.testing.assert_allclose(made, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.quick("csv")
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_column_of_single_values_may_get_its_second_dimension_from_a_step(
    cli: Cli, tmp_path: Path, form: str
) -> None:
    data = write(tmp_path, form)
    deploy(tmp_path, data, columns="f1", missing="", prepare="{cast: float32}, {expand: 0}, {scale: 2}")
    kind: tuple[int, list[int | str | None]] = (TensorProto.FLOAT, ["batch", 1])
    save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    done = cli("apply", tmp_path / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    assert [row["y"] for row in read_rows(tmp_path / "out")] == [[14], [16], [18]]


CELLS: dict[str, tuple[pa.Array, str]] = {
    "date": (pa.array([dt.date(2026, 11, 23)] * 3), "2026-11-23"),
    "timestamp": (
        pa.array([dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)] * 3, pa.timestamp("us", "UTC")),
        "2026-11-23 12:00:00+00:00",
    ),
    "time": (pa.array([dt.time(1, 30)] * 3), "01:30:00"),
    "duration": (pa.array([90] * 3, pa.duration("s")), "0:01:30"),
    "decimal": (pa.array([decimal.Decimal("1.10")] * 3), "1.10"),
    "bytes": (pa.array([b"\xff\x00a\x00"] * 3), "ff006100"),
    "nanoseconds": (
        pa.array([1700000000000000001] * 3).view(pa.timestamp("ns", "UTC")),
        "2023-11-14 22:13:20.000000001+00:00",
    ),
    "whole nanoseconds": (pa.array([1700000000_000000000] * 3).view(pa.timestamp("ns")), "2023-11-14 22:13:20"),
    "time in nanoseconds": (pa.array([5400_000000_012] * 3).view(pa.time64("ns")), "01:30:00.000000012"),
    "duration in nanoseconds": (pa.array([-1] * 3).view(pa.duration("ns")), "-1 day, 23:59:59.999999999"),
}


@pytest.mark.quick(
    "date-jsonl", "timestamp-parquet", "time-csv", "duration-npz", "decimal-jsonl", "bytes-csv", "nanoseconds-parquet",
)  # fmt: skip
@pytest.mark.parametrize("output", ["jsonl", "csv", "npz", "parquet"])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_that_json_has_no_type_for_are_keys(cli: Cli, tmp_path: Path, kind: str, output: str) -> None:
    """They ended the job as a bug of ortdeploy, with no row committed, where lines or failed rows are JSON."""
    cells, text = CELLS[kind]
    columns = {name: pa.array(values, pa.float32()) for name, values in (("f1", [1, None, 3]), ("f2", [4, 5, 6]))}
    parquet.write_table(pa.table({**columns, "when": cells}), tmp_path / "data.parquet")
    manifest = deploy(tmp_path, "data.parquet", missing="key: [when]")
    settings = f"path: out, format: {output}}}\n    errors: {{max_failed: 1}}"
    manifest.write_text(manifest.read_text().replace("path: out}", settings))
    applied = cli("apply", manifest)
    assert applied.code == 0, applied.out + applied.err
    (failed,) = map(json.loads, (tmp_path / "out/_failed.jsonl").read_text().splitlines())
    assert (failed["row"], failed["key"]["when"]) == (1, text)
    (part,) = (tmp_path / "out").glob("part-*")
    match output:
        case "jsonl":
            assert [row["when"] for row in read_rows(tmp_path / "out")] == [text] * 2
        case "csv":
            assert [line[0] for line in csv.reader(part.read_text().splitlines())] == ["when", text, text]
        case "npz":
            assert np.load(part)["when"].tolist() == [text] * 2
        case _:
            written = parquet.read_table(part)["when"].combine_chunks()
            assert written.cast(cells.type).equals(cells[:2])
            assert "nanoseconds" not in kind or written.type == cells.type


@pytest.mark.slow
@pytest.mark.parametrize("first", ["us", "ns"])
@pytest.mark.parametrize("output", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ["timestamp", "duration"])
def test_times_of_all_parts_have_the_unit_of_the_first(
    cli: Cli, tmp_path: Path, kind: str, output: str, first: str
) -> None:
    manifest = deploy(tmp_path, '"*.parquet"', missing="key: [when]")
    settings = f"path: out, format: {output}, rows_per_part: 2}}\n    errors: {{max_failed: 9}}"
    manifest.write_text(manifest.read_text().replace("path: out}", settings))
    second = {"us": "ns", "ns": "us"}[first]
    for name, unit, last in (("a", first, 5), ("b", second, None), ("b", second, 5)):
        write_times(tmp_path / f"{name}.parquet", pa.array([1000, 2000], getattr(pa, kind)(unit)), [5, last])
        is_repair = (tmp_path / f"out/part-00000001.{output}").exists()
        done = cli(*(["retry", "--job", "run"] if is_repair else ["apply"]), manifest, "-q")
        assert done.code == 0, done.out + done.err
    parts = sorted((tmp_path / "out").glob("part-*"))
    types = {read_table(part).schema.field("when").type for part in parts}
    assert types == {getattr(pa, kind)(first)}
    assert sum(len(read_table(part)) for part in parts) == 4


@pytest.mark.parametrize("output", ["parquet", "arrow"])
def test_parts_of_shards_have_the_unit_of_the_parts_before_them(cli: Cli, tmp_path: Path, output: str) -> None:
    manifest = deploy(tmp_path, '"*.parquet"', missing="key: [when]")
    manifest.write_text(manifest.read_text().replace("path: out}", f"path: out, format: {output}}}"))
    for name, unit in (("a", "us"), ("b", "ns")):
        write_times(tmp_path / f"{name}.parquet", pa.array([1000, 2000], pa.timestamp(unit)), [5, 5])
        plan = tmp_path / f"{name}.json"
        for done in (
            cli("plan", manifest, "--out", plan),
            cli("apply", plan, "--shard", "0/1"),
            cli("finish", plan),
        ):
            assert done.code == 0, done.words
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert [read_table(part).schema.field("when").type for part in parts] == [pa.timestamp("us")] * 2


@pytest.mark.slow
def test_rows_that_run_again_beside_their_part_have_its_unit(cli: Cli, tmp_path: Path) -> None:
    manifest = deploy(tmp_path, '"*.parquet"', missing="key: [when], on_change: rerun")
    manifest.write_text(manifest.read_text().replace("path: out}", "path: out, format: parquet, removable: true}"))
    for unit in ("us", "ns"):
        write_times(tmp_path / "a.parquet", pa.array([1000, 2000], pa.timestamp(unit)), [5, 5])
        assert cli("apply", manifest, "-q").code == 0
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert [part.name for part in parts] == ["part-00000000.parquet", "part-00000000.r1.parquet"]
    assert [read_table(part).schema.field("when").type for part in parts] == [pa.timestamp("us")] * 2


def test_rows_that_are_recovered_beside_their_part_have_the_unit_of_other_parts(cli: Cli, tmp_path: Path) -> None:
    """A part of failed rows has no file, so only the other parts say what the unit is."""
    manifest = deploy(tmp_path, '"*.parquet"', missing="key: [when]")
    settings = "path: out, format: parquet, rows_per_part: 2}\n    errors: {max_failed: 9}"
    manifest.write_text(manifest.read_text().replace("path: out}", settings))
    for name, unit, f2 in (("a", "us", 5), ("b", "ns", None), ("b", "ns", 5)):
        write_times(tmp_path / f"{name}.parquet", pa.array([1000, 2000], pa.timestamp(unit)), [f2, f2])
        is_repair = (tmp_path / "out/_failed.jsonl").exists() and f2 == 5 and name == "b"
        done = cli(*(["retry", "--job", "run"] if is_repair else ["apply"]), manifest, "-q")
        assert done.code == 0, done.words
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert [read_table(part).schema.field("when").type for part in parts] == [pa.timestamp("us")] * 2


@pytest.mark.slow
def test_nanoseconds_that_the_unit_of_the_first_part_does_not_hold_fail_their_rows(cli: Cli, tmp_path: Path) -> None:
    manifest = deploy(tmp_path, '"*.parquet"', missing="key: [when]")
    manifest.write_text(manifest.read_text().replace("path: out}", "path: out, format: parquet}"))
    write_times(tmp_path / "a.parquet", pa.array([1, 2], pa.timestamp("us")), [5, 5])
    assert cli("apply", manifest, "-q").code == 0
    write_times(tmp_path / "b.parquet", pa.array([1, 2], pa.timestamp("ns")), [5, 5])
    result = cli("apply", manifest, "-q")
    assert result.code == 1
    assert "does not fit timestamp[us], the type of this column in all parts" in result.words


def write_times(path: Path, times: pa.Array, f2: list[int | None]) -> None:
    columns = {name: pa.array(values, pa.float32()) for name, values in (("f1", [1, 3]), ("f2", f2))}
    parquet.write_table(pa.table({**columns, "when": times}), path)


def read_table(part: Path) -> pa.Table:
    return parquet.read_table(part) if part.suffix == ".parquet" else pa.ipc.open_file(part).read_all()


@pytest.mark.slow
@pytest.mark.parametrize("first_goes", [False, True])
@pytest.mark.parametrize("upgrade", ["refuse", "continue"])
def test_columns_of_a_pattern_are_fed_in_the_order_of_the_first_file(
    cli: Cli, tmp_path: Path, upgrade: str, first_goes: bool
) -> None:
    path = deploy(tmp_path, '"*.csv"', missing="", prepare="")
    path.write_text(path.read_text().replace("path: out", f"path: out, on_upgrade: {upgrade}"))
    (tmp_path / "a.csv").write_text("f1,f2,f10\n1,2,10\n")
    assert cli("apply", path, "-q").code == 0
    (tmp_path / "b.csv").write_text("f1,f10,f2\n3,30,4\n")
    if first_goes:
        (tmp_path / "a.csv").unlink()
    done = cli("apply", path, "-q")
    assert done.code == 0, done.out + done.err
    assert [row["y"] for row in read_rows(tmp_path / "out")] == [[1, 2, 10], [3, 4, 30]]


def test_files_of_one_run_may_have_their_columns_in_different_orders(cli: Cli, tmp_path: Path) -> None:
    path = deploy(tmp_path, '"*.csv"', missing="", prepare="")
    (tmp_path / "a.csv").write_text("f1,f2,f10\n1,2,10\n")
    (tmp_path / "b.csv").write_text("f1,f10,f2\n3,30,4\n")
    done = cli("apply", path, "-q")
    assert done.code == 0, done.out + done.err
    assert [row["y"] for row in read_rows(tmp_path / "out")] == [[1, 2, 10], [3, 4, 30]]


@pytest.mark.slow
def test_committed_files_that_differ_by_a_column_are_no_reason_to_refuse_a_job(cli: Cli, tmp_path: Path) -> None:
    path = deploy(tmp_path, '"*.csv"', columns="[f1, f2]", missing="", prepare="")
    (tmp_path / "a.csv").write_text("f1,f2\n1,2\n")
    assert cli("apply", path, "-q").code == 0
    (tmp_path / "b.csv").write_text("f1,f2,f3\n3,4,5\n")
    assert cli("apply", path, "-q").code == 0
    path.write_text(path.read_text() + "    errors: {max_failed: 5}\n")
    done = cli("apply", path, "-q")
    assert done.code == 0, done.out + done.err
