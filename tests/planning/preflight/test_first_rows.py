"""The first rows are read by the job's own loader when a plan is made, and what is wrong with them is said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Cli
from PIL import Image
from support.models import gather_model, scale_model

from ortdeploy.sources.arrays import ArraysError, ArraySource

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx, INPUTS}
jobs:
  run:
    model: m
    input: {path: DATA}
    batch: {size: 8}
    MORE
    output: {path: out}
"""


def planned(
    cli: Cli, folder: Path, data: str, more: str = "", inputs: str = "", output: str = "jsonl"
) -> list[dict[str, Any]]:
    text = MANIFEST.replace("DATA", data).replace("MORE", more).replace("INPUTS", inputs)
    text = text.replace("path: out}", f"path: out, format: {output}}}")
    (folder / "m.yaml").write_text(text)
    found: list[dict[str, Any]] = cli("plan", folder / "m.yaml", "--format", "json").json["diagnostics"]
    return found


def only(found: list[dict[str, Any]]) -> tuple[str, str]:
    (one,) = found
    assert (one["job"], one["line"]) == ("run", 7)
    return one["rule"], one["detail"]


def test_good_rows_are_not_spoken_of(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((100, 4), np.float32))
    assert planned(cli, tmp_path, "x.npy") == []


def test_text_that_is_no_number_is_named_with_its_line(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width=2)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n1,n/a\n3,4\n")
    found = only(planned(cli, tmp_path, "x.csv, columns: {x: [a, b]}"))
    assert found == (
        "unusable-rows",
        "1 of the first 3 rows cannot be fed to the model. Row 1 (x.csv:3), read: 'n/a' is not float32: "
        "could not convert string to float: 'n/a'. The job would fail: max_failed is 0. Correct the rows, or allow for such "
        "rows with errors: {max_failed: 34%}.",
    )
    (tmp_path / "x.csv").write_text("a,b\n,2\n1,\n")
    rule, detail = only(planned(cli, tmp_path, "x.csv, columns: {x: [a, b]}"))
    assert rule == "unusable-rows"
    assert "Row 0 (x.csv:2), read: a value is empty where a number is wanted." in detail
    assert planned(cli, tmp_path, "x.csv, columns: {x: [a, b]}, missing: {a: 0, b: 1}") == []


def test_values_out_of_the_declared_range_are_a_mistake_about_the_data(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.full((9, 4), 255, np.float32))
    rule, detail = only(planned(cli, tmp_path, "x.npy", inputs="inputs: {x: {range: [0, 1]}}"))
    assert rule == "unusable-rows"
    assert "Row 0 (x.npy), contract: input x must lie in 0 to 1 and has 255 to 255." in detail
    assert (
        planned(cli, tmp_path, "x.npy", "prepare: {x: [{scale: 0.00392156862}]}", "inputs: {x: {range: [0, 1]}}") == []
    )


def test_indices_past_the_end_of_a_table_of_the_graph(cli: Cli, tmp_path: Path) -> None:
    gather_model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([3, 10, 4], np.int64))
    rule, detail = only(planned(cli, tmp_path, "x.npy", "errors: {max_failed: 1}"))
    assert rule == "failing-rows"
    assert "Row 1 (x.npy), contract: input index must lie in -10 to 9 and has 10 to 10." in detail


def test_rows_that_fail_for_other_reasons_are_not_said_to_fail_the_same_way(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width=2)
    (tmp_path / "x.csv").write_text("a,b\n1,n/a\n1,\n3,4\n")
    _, detail = only(planned(cli, tmp_path, "x.csv, columns: {x: [a, b]}"))
    assert "float: 'n/a'. Row 1 fails too." in detail
    (tmp_path / "x.csv").write_text("a,b\n1,\n1,\n3,4\n")
    _, detail = only(planned(cli, tmp_path, "x.csv, columns: {x: [a, b]}"))
    assert "Row 1 fails the same way." in detail


def test_lists_of_another_length_than_the_models(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    lines = [[1, 2, 3, 4], [1, 2, 3], [[1, 2], [3, 4]]]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"x": line}) + "\n" for line in lines))
    rule, detail = only(planned(cli, tmp_path, "x.jsonl", "errors: {max_failed: 2}"))
    assert rule == "failing-rows"
    assert detail.startswith(
        "2 of the first 3 rows cannot be fed to the model. Row 1 (x.jsonl:2), contract: input x takes"
    )


def test_numbers_that_the_provider_may_change_are_warned_of_once(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    rows = np.ones((20, 4), np.float32)
    np.save(tmp_path / "x.npy", rows)
    flushed = "session: {config: {session.set_denormal_as_zero: true}}"
    assert planned(cli, tmp_path, "x.npy", inputs=flushed) == []
    rows[5, 1], rows[9, 0] = 1e-40, 2e-40
    np.save(tmp_path / "x.npy", rows)
    assert planned(cli, tmp_path, "x.npy") == []
    rule, detail = only(planned(cli, tmp_path, "x.npy", inputs=flushed))
    assert rule == "narrowed-numbers"
    assert detail.startswith("In the first rows, input x has 9.99995e-41. The CPU takes numbers nearer to zero")


def test_nan_and_infinities_until_the_manifest_says_what_becomes_of_them(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    rows = np.ones((20, 4), np.float32)
    rows[5, 1], rows[9, 0] = np.nan, np.inf
    np.save(tmp_path / "x.npy", rows)
    rule, detail = only(planned(cli, tmp_path, "x.npy"))
    assert rule == "not-finite-rows"
    assert detail.startswith("2 of the first 20 rows hold NaN or an infinity, row 5 the first of them.")
    assert planned(cli, tmp_path, "x.npy", "errors: {on_nan: skip}") == []


def test_images_are_decoded_and_those_of_different_sizes_are_rows_of_their_own(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width="width")
    for number in range(6):
        Image.new("L", (4 + number, 1)).save(tmp_path / f"{number}.png")
    steps = "prepare: {x: [{scale: 1}, {flatten: true}]}"
    assert planned(cli, tmp_path, "'*.png'", steps) == []
    (tmp_path / "1.png").write_bytes(b"no image")
    rule, detail = only(planned(cli, tmp_path, "'*.png'", steps))
    assert rule == "unusable-rows"
    assert detail.startswith("1 of the first 4 rows cannot be fed to the model. Row 1 (1.png), read: not an image")


def test_a_model_without_a_dimension_for_rows_is_held_against_each_row(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", batch=2)
    np.save(tmp_path / "x.npy", np.ones((70, 2, 4), np.float32))
    text = (
        MANIFEST.replace("DATA", "x.npy").replace("MORE\n", "\n").replace("INPUTS", "").replace("size: 8", "size: none")
    )
    (tmp_path / "m.yaml").write_text(text)
    assert cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"] == []


def test_an_input_that_cannot_be_read_any_more_is_said(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArraysError("x.npy ends before its last row")

    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((9, 4), np.float32))
    monkeypatch.setattr(ArraySource, "blocks", fail)
    rule, detail = only(planned(cli, tmp_path, "x.npy"))
    assert rule == "unusable-rows"
    assert "Row 0, read: x.npy ends before its last row." in detail


@pytest.mark.slow
def test_rows_of_a_finished_job_are_not_looked_at(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.full((9, 4), np.nan, np.float32))
    assert len(planned(cli, tmp_path, "x.npy")) == 1
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert planned(cli, tmp_path, "x.npy") == []


@pytest.mark.slow
def test_rows_that_arrived_later_are_new_and_the_advice_lets_the_job_go_on(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width=2)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n5,6\n")
    assert planned(cli, tmp_path, "'*.csv', columns: {x: [a, b]}") == []
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    (tmp_path / "b.csv").write_text("a,b\n1,n/a\n")
    rule, detail = only(planned(cli, tmp_path, "'*.csv', columns: {x: [a, b]}"))
    assert rule == "unusable-rows"
    assert detail.startswith("1 of the first 1 new rows cannot be fed to the model. Row 3 (b.csv:2), read: ")
    advice = detail.partition("allow for such rows with ")[2].rstrip(".")
    assert advice == "errors: {max_failed: 25%}"
    assert only(planned(cli, tmp_path, "'*.csv', columns: {x: [a, b]}", advice))[0] == "failing-rows"


def test_where_no_row_can_be_fed_it_is_not_said_to_allow_for_that(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width=2)
    (tmp_path / "x.csv").write_text("a,b\n,2\n")
    _, detail = only(planned(cli, tmp_path, "x.csv, columns: {x: [a, b]}"))
    assert detail.endswith("max_failed is 0. Correct the rows, or the columns and steps that feed them.")


KEYS: dict[str, pa.Array] = {
    "map": pa.array([[("a", 1)]] * 2, pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"a": 1, "b": "x"}] * 2),
    "list": pa.array([[1], [2, 3]]),
    "interval": pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()),
}


@pytest.mark.quick("map-csv", "interval-parquet")
@pytest.mark.parametrize(
    ("kind", "output", "why"),
    [
        ("map", "csv", "the rows of d hold lists or maps, which CSV cannot; use jsonl."),
        ("struct", "csv", "the rows of d hold lists or maps, which CSV cannot; use jsonl."),
        ("list", "npz", "rows of d differ in shape"),
        ("interval", "parquet", "the format does not have the type of a column: Unhandled type"),
    ],
    ids=["map-csv", "struct-csv", "list-npz", "interval-parquet"],
)
def test_a_key_that_the_output_cannot_hold_refuses_the_job(
    cli: Cli, tmp_path: Path, kind: str, output: str, why: str
) -> None:
    data = key_of_kind(tmp_path, kind)
    rule, detail = only(planned(cli, tmp_path, data, "errors: {max_failed: 99%}", output=output))
    assert rule == "unusable-rows"
    assert f"Row 0, read: its key cannot be written: {why}" in detail
    assert detail.endswith("The job would fail there, whatever errors: allows.")
    assert planned(cli, tmp_path, data) == []


def key_of_kind(folder: Path, kind: str) -> str:
    """Write a table with a key of that kind; return the input of a job that reads it."""
    scale_model(folder / "m.onnx", width=1)
    table = pa.table({"x": pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1)), "d": KEYS[kind]})
    with pa.ipc.new_file(folder / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    return "x.arrow, columns: {x: x}, key: [d]"


@pytest.mark.parametrize(
    ("kind", "output"), [("map", "parquet"), ("struct", "arrow"), ("struct", "parquet"), ("interval", "arrow")]
)
def test_a_key_of_maps_keeps_its_type_in_tables(cli: Cli, tmp_path: Path, kind: str, output: str) -> None:
    assert planned(cli, tmp_path, key_of_kind(tmp_path, kind), output=output) == []
    assert cli("apply", tmp_path / "m.yaml").code == 0
    (part,) = tmp_path.glob(f"**/part-*.{output}")
    written = pq.read_table(part) if output == "parquet" else pa.ipc.open_file(part).read_all()
    assert written["d"].to_pylist() == KEYS[kind].to_pylist()


def test_a_late_key_that_the_output_cannot_hold_fails_its_part_by_name(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width=1)
    late = pa.array([*[None] * 70, (1, 2, 3)], pa.month_day_nano_interval())
    table = pa.table({"x": pa.array([[1.0]] * 71, pa.list_(pa.float32(), 1)), "d": late})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    data = "x.arrow, columns: {x: x}, key: [d]"
    assert planned(cli, tmp_path, data, output="parquet") == []
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 1
    assert "part-00000000.parquet" in done.out + done.err
    assert "the format does not have the type of a column" in " ".join((done.out + done.err).split())
