"""An output has one type for each carried column, whatever its input files hold and whenever they arrive.

Random inputs are joined, run, killed, continued, sharded and compacted. An independent model says which type the column
has and which rows do not fit it; pyarrow reads the folder as one table.
"""

import datetime as dt
import json
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from pyarrow import parquet
from support.fuse import killed_at
from support.models import save_model

from ortdeploy.jobs import job_context, part_loop

SEED, CASES = int(os.environ.get("ORTDEPLOY_FUZZ_SEED", "1")), int(os.environ.get("ORTDEPLOY_FUZZ", "12"))

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx, session: {{intra_op_num_threads: 1}}}}}}
jobs:
  j:
    model: m
    input: {{path: "in/*", key: [row, k]}}
    prepare: {{x: [{{cast: float32}}]}}
    batch: {{size: {size}}}
    output: {{path: out, format: {form}, rows_per_part: {per_part}{types}}}
    errors: {{max_failed: 1000}}
"""


def model(folder: Path) -> None:
    kind: tuple[int, list[int | str | None]] = (TensorProto.FLOAT, ["batch"])
    save_model(folder / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})


def write(path: Path, columns: dict[str, pa.Array]) -> None:
    """Write a table as the format of its suffix has it."""
    path.parent.mkdir(exist_ok=True)
    table = pa.table(columns)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    elif path.suffix == ".npz":
        np.savez(path, **{name: as_numpy(column) for name, column in columns.items()})
    else:
        rows = [
            dict(zip(columns, row, strict=True))
            for row in zip(*(one.to_pylist() for one in columns.values()), strict=True)
        ]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def as_numpy(column: pa.Array) -> Any:
    values = column.to_pylist()
    return np.array(values) if isinstance(values[0], str) else column.to_numpy(zero_copy_only=False)


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("part-*"))


def written(folder: Path) -> pa.Table:
    """The output as a reader takes it: the folder as one table, of the schema of its first part."""
    form = "ipc" if parts(folder)[0].suffix == ".arrow" else "parquet"
    table = pa.dataset.dataset([str(one) for one in parts(folder)], format=form).to_table()
    kinds = {str(pa.dataset.dataset(str(one), format=form).schema.field("k").type) for one in parts(folder)}
    assert kinds == {str(table.schema.field("k").type)}
    return table.sort_by("row")


def failed(folder: Path) -> dict[int, str]:
    path = folder / "out/_failed.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["row"]: row["message"] for row in map(json.loads, lines)}


def deploy(folder: Path, **said: Any) -> Path:
    model(folder)
    settings = {"size": 2, "form": "parquet", "per_part": 2, "types": ""} | said
    (folder / "m.yaml").write_text(MANIFEST.format(**settings))
    return folder / "m.yaml"


def json_rows(path: Path, values: Sequence[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"x": 1, "k": value}) + "\n" for value in values))


def x(rows: int) -> pa.Array:
    return pa.array([1.0] * rows, pa.float32())


# The rows of the findings, one by one


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([1, 2, 2.5, 3, None, None], pa.float64(), [1.0, 2.0, 2.5, 3.0, None, None]),
        ([None, None, 1, 2], pa.int64(), [None, None, 1, 2]),
        ([1, True, "a", 2.5], pa.string(), ["1", "true", "a", "2.5"]),
        ([2**53 + 1, 2.5, 1, 1], pa.string(), ["9007199254740993", "2.5", "1", "1"]),
        ([[1], [2.5], [], None], pa.list_(pa.float64()), [[1.0], [2.5], [], None]),
    ],
)
def test_json_values_have_one_type_in_all_parts(
    cli: Cli, tmp_path: Path, values: list[Any], kind: pa.DataType, wanted: list[Any]
) -> None:
    json_rows(tmp_path / "in/a.jsonl", values)
    done = cli("apply", deploy(tmp_path), "-q")
    assert done.code == 0, done.out
    table = written(tmp_path)
    assert len(parts(tmp_path)) > 1
    assert str(table.schema.field("k").type).replace("element", "item") == str(kind)
    assert table["k"].to_pylist() == wanted


def test_a_later_value_that_does_not_fit_fails_its_row_by_name_and_never_the_job(cli: Cli, tmp_path: Path) -> None:
    json_rows(tmp_path / "in/a.jsonl", [1, 2])
    manifest = deploy(tmp_path)
    assert cli("apply", manifest, "-q").code == 0
    json_rows(tmp_path / "in/b.jsonl", [3, 2.5, "x", None, 4.0])
    assert cli("apply", manifest, "-q").code == 0
    assert written(tmp_path)["k"].to_pylist() == [1, 2, 3, None, 4]
    assert failed(tmp_path).keys() == {3, 4}
    why = failed(tmp_path)[3]
    assert why.startswith('"k": 2.5 does not fit int64, the type of this column in all parts.')
    assert "types: {k: text}" in why


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (pa.array([{"a": 1}]), pa.array([{"a": 2.5}])),
        (pa.array([{"a": 1}]), pa.array([{"a": 2, "b": "more"}])),
        (pa.array([{"a": 1}]), pa.array([{"b": 2}])),
        (pa.array([{"a": [1]}]), pa.array([{"a": [2.5]}])),
        (
            pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            pa.array([[("a", 2.5)]], pa.map_(pa.string(), pa.float64())),
        ),
    ],
)
def test_later_values_in_structs_and_maps_keep_what_they_are_or_fail(
    cli: Cli, tmp_path: Path, first: pa.Array, later: pa.Array
) -> None:
    """Asked for whole numbers, pyarrow makes 2 of 2.5 there, and it leaves fields out."""
    write(tmp_path / "in/a.parquet", {"x": x(1), "k": first})
    manifest = deploy(tmp_path)
    assert cli("apply", manifest, "-q").code == 0
    write(tmp_path / "in/b.parquet", {"x": x(2), "k": pa.concat_arrays([later, pa.nulls(1, later.type)])})
    assert cli("apply", manifest, "-q").code == 0
    assert written(tmp_path)["k"].to_pylist() == [*first.to_pylist(), None]
    assert failed(tmp_path).keys() == {1}
    assert "does not fit" in failed(tmp_path)[1]


def test_a_late_map_of_json_that_does_not_fit_fails_by_name(cli: Cli, tmp_path: Path) -> None:
    json_rows(tmp_path / "in/a.jsonl", [{"a": 1}])
    manifest = deploy(tmp_path)
    assert cli("apply", manifest, "-q").code == 0
    json_rows(tmp_path / "in/b.jsonl", [{"a": 2.5}, {"b": 3}])
    assert cli("apply", manifest, "-q").code == 0
    assert written(tmp_path)["k"].to_pylist() == [[("a", 1)], [("b", 3)]]
    assert failed(tmp_path)[1].startswith("\"k\": {'a': 2.5} does not fit map<text, int64>")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize(("told", "whole"), [("float64", 2**53 + 1), ("float32", 2**24 + 1), ("float16", 2**11 + 1)])
def test_a_whole_number_that_the_told_type_would_round_fails(
    cli: Cli, tmp_path: Path, suffix: str, told: str, whole: int
) -> None:
    json_rows(tmp_path / "in/a.jsonl", [whole, whole - 1, 0.5])
    if suffix == "csv":
        (tmp_path / "in/a.jsonl").unlink()
        (tmp_path / "in/a.csv").write_text(f"x,k\n1,{whole}\n1,{whole - 1}\n1,0.5\n")
    assert cli("apply", deploy(tmp_path, types=f", types: {{k: {told}}}"), "-q").code == 0
    assert written(tmp_path)["k"].to_pylist() == [whole - 1, 0.5]
    assert f"does not fit {told}" in failed(tmp_path)[0]


def test_whole_decimals_beside_floating_numbers_keep_their_value_or_fail(cli: Cli, tmp_path: Path) -> None:
    decimals = pa.array([Decimal(2**53 + 1), Decimal(3)], pa.decimal128(20, 0))
    write(tmp_path / "in/a.parquet", {"x": x(2), "k": decimals})
    write(tmp_path / "in/b.parquet", {"x": x(1), "k": pa.array([0.5])})
    assert cli("apply", deploy(tmp_path), "-q").code == 0
    assert written(tmp_path)["k"].to_pylist() == [3.0, 0.5]
    assert failed(tmp_path)[0].startswith('"k": 9007199254740993 does not fit float64')


def test_types_of_the_manifest_hold_and_belong_to_the_output(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("x,k\n1,7\n1,\n1,1.5\n1,oops\n")
    manifest = deploy(tmp_path, types=", types: {k: float32}")
    assert cli("apply", manifest, "-q").code == 0
    table = written(tmp_path)
    assert (table.schema.field("k").type, table["k"].to_pylist()) == (pa.float32(), [7.0, None, 1.5])
    assert failed(tmp_path)[3].startswith('"k": "oops" does not fit float32')
    deploy(tmp_path, types=", types: {k: text}")
    refused = cli("apply", manifest, "-q")
    assert refused.code == 1
    assert "finished-output" in refused.out
    again = cli("apply", manifest, "-q", "--new-run")
    assert again.code == 0
    assert written(tmp_path)["k"].to_pylist() == ["7", "", "1.5", "oops"]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_tables_are_joined_by_the_names_of_what_is_used(cli: Cli, tmp_path: Path, suffix: str) -> None:
    """Another order, a column more, a narrower number, another way to store text: files of one input all the same."""
    write(tmp_path / f"in/a.{suffix}", {"x": pa.array([1, 2], pa.int32()), "k": pa.array(["a", "b"])})
    later = {"k": pa.array(["c"]).dictionary_encode(), "more": pa.array([1]), "x": pa.array([2.5])}
    write(tmp_path / f"in/b.{suffix}", later)
    write(tmp_path / f"in/c.{suffix}", {"more": pa.array(["t"]), "x": x(1), "k": pa.array(["d"], pa.large_string())})
    done = cli("apply", deploy(tmp_path, size=3, per_part=3), "-q")
    assert done.code == 0, done.out
    table = written(tmp_path)
    assert table["k"].to_pylist() == ["a", "b", "c", "d"]
    assert table["y"].to_pylist() == [1.0, 2.0, 2.5, 1.0]


def test_what_cannot_be_joined_names_file_column_and_both_types(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"x": x(1), "k": pa.array([[1]])})
    write(tmp_path / "in/b.parquet", {"x": x(1), "k": pa.array(["t"])})
    said = cli("apply", deploy(tmp_path)).words
    assert "unreadable-input" in said
    assert '"k" is list<' in said
    assert "in/a.parquet and string in" in said
    write(tmp_path / "in/b.parquet", {"k": pa.array([[2]])})
    said = cli("apply", tmp_path / "m.yaml").words
    assert 'in/b.parquet has no column "x", which is float in' in said


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([dt.date(2026, 1, 1)]), "is date32[day], which no model input takes. Write it into the files as numbers"),
        (pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]), "is timestamp[us, tz=UTC], which no model input"),
        (pa.array([dt.timedelta(seconds=1)]), "is duration[us], which no model input takes"),
        (pa.array([b"x"]), "is binary, which no model input takes"),
        (pa.array([{"a": 1}]), "is struct<a: int64>, which no model input takes"),
        (pa.array([Decimal("1.5")]), "is decimal128(2, 1). No model input takes decimals as they are: write prepare: {x: [{cast: float32}]}"),
    ],
)  # fmt: skip
def test_what_no_input_takes_is_said_by_the_plan(cli: Cli, tmp_path: Path, column: pa.Array, words: str) -> None:
    write(tmp_path / "in/a.arrow", {"x": column, "k": pa.array([1])})
    manifest = deploy(tmp_path)
    manifest.write_text(manifest.read_text().replace("prepare: {x: [{cast: float32}]}", "prepare: {}"))
    said = cli("plan", manifest)
    assert said.code == 1
    assert f'"x", which feeds input "x", {words}' in said.words


def test_decimals_are_cast_and_whole_ones_that_floats_round_fail(cli: Cli, tmp_path: Path) -> None:
    write(
        tmp_path / "in/a.parquet",
        {"x": pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal128(30, 2)), "k": pa.array([1, 2, 3])},
    )
    write(tmp_path / "in/b.parquet", {"x": pa.array([Decimal(2**53 + 1)], pa.decimal128(30, 2)), "k": pa.array([4])})
    assert cli("apply", deploy(tmp_path), "-q").code == 0
    assert written(tmp_path)["y"].to_pylist() == [1.5, -2.25]
    assert {row: why.split(",")[0] for row, why in failed(tmp_path).items()} == {
        2: '"x" is empty',
        3: f'"x" is {2**53 + 1}.00',
    }


@pytest.mark.quick("True-list-0", "True-fixed-1", "False-list-2")
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("form", [pa.list_, lambda kind: pa.list_(kind, 1)], ids=["list", "fixed"])
@pytest.mark.parametrize("is_fed", [True, False])
def test_decimals_beside_doubles_keep_their_value_or_fail_at_any_depth(
    cli: Cli, tmp_path: Path, depth: int, form: Callable[[pa.DataType], pa.DataType], is_fed: bool
) -> None:
    def nested(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        for _ in range(depth):
            values, kind = [[value] for value in values], form(kind)
        return pa.array(values, kind)

    name, result = ("x", "y") if is_fed else ("k", "k")
    manifest = deploy(tmp_path)
    if is_fed:
        kind: tuple[int, list[int | str | None]] = (TensorProto.FLOAT, ["batch", *[1] * depth])
        save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    decimals = nested([Decimal("1.50"), Decimal(2**53 + 1)], pa.decimal128(20, 2))
    for file, column in enumerate((decimals, nested([0.25], pa.float64()))):
        columns = {"x": x(len(column)), "k": pa.array(range(len(column)))} | {name: column}
        write(tmp_path / f"in/{file}.parquet", columns)
    assert cli("apply", manifest, "-q").code == 0
    found = written(tmp_path)[result].to_pylist()
    assert np.array(found).reshape(-1).tolist() == [1.5, 0.25]
    assert f"{2**53 + 1}.00" in failed(tmp_path)[1]
    assert "does not fit" in failed(tmp_path)[1]


@pytest.mark.parametrize("places", [0, 2])
def test_lists_of_decimals_are_cast(cli: Cli, tmp_path: Path, places: int) -> None:
    kind: tuple[int, list[int | str | None]] = (TensorProto.FLOAT, ["batch", 2])
    manifest = deploy(tmp_path)
    save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    rows = [[Decimal(3), Decimal(4)], [Decimal(5), None]]
    columns = {"x": pa.array(rows, pa.list_(pa.decimal128(8, places))), "k": pa.array([1, 2])}
    write(tmp_path / "in/a.parquet", columns)
    assert cli("apply", manifest, "-q").code == 0
    assert written(tmp_path)["y"].to_pylist() == [[3.0, 4.0]]
    assert failed(tmp_path)[1] == '"x" has an empty element'


@pytest.mark.parametrize(
    ("stored", "other"),
    [
        (pa.array(["a", None], pa.large_string()), pa.array(["b"])),
        (pa.array(["a", "a"]).dictionary_encode(), pa.array(["b"])),
        (pa.array([2**40, None]), pa.array([3], pa.int8())),
        (pa.array([True, False]), pa.array([None], pa.bool_())),
        (pa.array([[1], None]), pa.array([[2, 3]])),
    ],
)
def test_runs_are_read_as_what_they_hold(cli: Cli, tmp_path: Path, stored: pa.Array, other: pa.Array) -> None:
    ends = pa.array([3, 5], pa.int16())
    fed = pa.RunEndEncodedArray.from_arrays(ends, pa.array([0.5, 2], pa.float32()))
    keys = pa.RunEndEncodedArray.from_arrays(ends, stored)
    write(tmp_path / "in/a.arrow", {"x": fed, "k": keys})
    write(tmp_path / "in/b.arrow", {"x": x(1), "k": other})
    assert cli("apply", deploy(tmp_path), "-q").code == 0
    table = written(tmp_path)
    assert table["y"].to_pylist() == [0.5, 0.5, 0.5, 2.0, 2.0, 1.0]
    first, second = stored.to_pylist()
    assert table["k"].to_pylist() == [first] * 3 + [second] * 2 + other.to_pylist()


def test_what_pyarrow_does_not_decode_is_refused_by_name(cli: Cli, tmp_path: Path) -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([[1]]))
    write(tmp_path / "in/a.arrow", {"x": x(2), "k": keys})
    refused = cli("apply", deploy(tmp_path), "-q")
    assert refused.code == 1
    assert (
        "list<item: int64>, indices=int64, ordered=0>, which cannot be read as list<item: int64>; write it as that"
        in refused.words
    )


@pytest.mark.parametrize("text", [pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())])
def test_text_feeds_a_model_however_it_is_stored(cli: Cli, tmp_path: Path, text: pa.DataType) -> None:
    kind: tuple[int, list[int | str | None]] = (TensorProto.STRING, ["batch"])
    save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    write(tmp_path / "in/a.arrow", {"x": pa.array(["p", "q"]).cast(text)})
    write(tmp_path / "in/b.arrow", {"x": pa.array(["r"])})
    (tmp_path / "m.yaml").write_text("version: 1\nmodels: {m: {path: m.onnx}}\njobs: {j: {model: m, input: {path: in/*.arrow}, output: {path: out}}}\n")  # fmt: skip
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert [json.loads(line)["y"] for one in parts(tmp_path) for line in one.read_text().splitlines()] == [
        "p",
        "q",
        "r",
    ]


def test_arrays_of_text_of_other_widths_and_of_narrower_numbers_are_joined(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in/a.npz", x=np.array([1, 2], np.int32), k=np.array(["ab", "c"]))
    np.savez(tmp_path / "in/b.npz", k=np.array(["abcdef"]), x=np.array([2.5]), more=np.zeros(1))
    assert cli("apply", deploy(tmp_path, size=4, per_part=4), "-q").code == 0
    assert written(tmp_path)["k"].to_pylist() == ["ab", "c", "abcdef"]
    assert written(tmp_path)["y"].to_pylist() == [1.0, 2.0, 2.5]
    np.save(tmp_path / "a.npy", np.array(["ab"]))
    np.save(tmp_path / "b.npy", np.array(["abcdef"]))
    kind: tuple[int, list[int | str | None]] = (TensorProto.STRING, ["batch"])
    save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    (tmp_path / "t.yaml").write_text("version: 1\nmodels: {m: {path: m.onnx}}\njobs: {j: {model: m, input: {path: '*.npy'}, output: {path: texts}}}\n")  # fmt: skip
    assert cli("apply", tmp_path / "t.yaml", "-q").code == 0


def test_an_output_that_an_earlier_version_began_goes_on_with_the_type_of_its_parts(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in/a.parquet", {"x": x(1), "k": pa.array([1], pa.int32())})
    manifest = deploy(tmp_path)
    with monkeypatch.context() as patch:
        forget_types(patch)
        assert cli("apply", manifest, "-q").code == 0
    write(tmp_path / "in/b.parquet", {"x": x(2), "k": pa.array([2, 2**40])})
    assert cli("apply", manifest, "-q").code == 0
    table = written(tmp_path)
    assert (table.schema.field("k").type, table["k"].to_pylist()) == (pa.int32(), [1, 2])
    assert "does not fit int32" in failed(tmp_path)[2]


def test_shards_write_the_type_of_all_rows_and_finish_keeps_it(cli: Cli, tmp_path: Path) -> None:
    json_rows(tmp_path / "in/a.jsonl", [1, 2, None, None, 3, 2.5])
    manifest, plan = deploy(tmp_path), tmp_path / "plan.json"
    assert cli("plan", manifest, "--out", plan).code == 0
    for index in (1, 0, 2):
        assert cli("apply", plan, "--shard", f"{index}/3", "-q").code == 0
    assert cli("finish", plan, "-q").code == 0
    assert written(tmp_path)["k"].to_pylist() == [1.0, 2.0, None, None, 3.0, 2.5]
    json_rows(tmp_path / "in/b.jsonl", [7, "x"])
    assert cli("apply", manifest, "-q").code == 0
    assert written(tmp_path)["k"].to_pylist() == [1.0, 2.0, None, None, 3.0, 2.5, 7.0]
    assert failed(tmp_path).keys() == {7}


def forget_types(patch: pytest.MonkeyPatch) -> None:
    """Keep no types in the ledger, as versions that knew none."""
    for module in (part_loop, job_context):
        patch.setattr(module, "kept_types", lambda _step: {})


# Random inputs against an independent model


@dataclass
class Kind:
    """A type of values: what it is as a name of its family, with what pyarrow makes of Python's values."""

    family: str
    arrow: pa.DataType
    draw: Callable[[random.Random], Any]


def _moment(unit: int) -> Callable[[random.Random], dt.datetime]:
    return lambda r: dt.datetime(2026, 1, 1) + dt.timedelta(microseconds=r.randrange(10**12) // unit * unit)  # noqa: DTZ001  a time stamp without a zone


def _zoned(r: random.Random) -> dt.datetime:
    return _moment(1)(r).replace(tzinfo=dt.UTC)


KINDS = [
    Kind("int", pa.int8(), lambda r: r.randint(-128, 127)),
    Kind("int", pa.int32(), lambda r: r.randint(-(2**31), 2**31 - 1)),
    Kind("int", pa.int64(), lambda r: r.choice([r.randint(-9, 9), r.randint(-(2**63), 2**63 - 1), 2**53 + 1])),
    Kind("int", pa.uint8(), lambda r: r.randint(0, 255)),
    Kind("int", pa.uint64(), lambda r: r.choice([r.randint(0, 9), r.randint(0, 2**64 - 1)])),
    Kind("float", pa.float32(), lambda r: float(np.float32(r.uniform(-9, 9)))),
    Kind("float", pa.float64(), lambda r: r.choice([r.uniform(-1e9, 1e9), float(r.randint(-9, 9))])),
    Kind("bool", pa.bool_(), lambda r: r.random() < 0.5),
    Kind("text", pa.string(), lambda r: r.choice(["", "a", "ä€", "7", "true"])),
    Kind("text", pa.large_string(), lambda r: r.choice(["b", "x" * 40])),
    Kind("text", pa.string_view(), lambda r: r.choice(["v", "w" * 40])),
    Kind("text", pa.dictionary(pa.int8(), pa.string()), lambda r: r.choice(["one", "two"])),
    Kind("date", pa.date32(), lambda r: dt.date(2026, 1, 1) + dt.timedelta(days=r.randrange(999))),
    Kind("timestamp", pa.timestamp("s"), _moment(10**6)),
    Kind("timestamp", pa.timestamp("ms"), _moment(1000)),
    Kind("timestamp", pa.timestamp("us"), _moment(1)),
    Kind("timestamp", pa.timestamp("ns"), _moment(1)),
    Kind("zoned", pa.timestamp("us", "UTC"), _zoned),
    Kind("time", pa.time32("s"), lambda r: dt.time(r.randrange(24), r.randrange(60))),
    Kind("time", pa.time64("us"), lambda r: dt.time(1, 2, 3, r.randrange(10**6))),
    Kind("duration", pa.duration("ms"), lambda r: dt.timedelta(milliseconds=r.randrange(10**9))),
    Kind("duration", pa.duration("us"), lambda r: dt.timedelta(microseconds=r.randrange(10**9))),
    Kind("decimal", pa.decimal128(8, 2), lambda r: Decimal(r.randrange(-(10**8), 10**8)).scaleb(-2)),
    Kind("decimal", pa.decimal128(20, 4), lambda r: Decimal(r.randrange(10**20)).scaleb(-4)),
    Kind("bytes", pa.binary(), lambda r: r.choice([b"", b"\x00\xff"])),
    Kind("list", pa.list_(pa.int32()), lambda r: [r.randint(-9, 9) for _ in range(r.randrange(3))]),
    Kind("list", pa.list_(pa.float64()), lambda r: [r.uniform(-9, 9) for _ in range(r.randrange(3))]),
    Kind("null", pa.null(), lambda _: None),
]
DIGITS = {"int8": 3, "int32": 10, "int64": 19, "uint8": 3, "uint64": 20}
UNITS = ("s", "ms", "us", "ns")
OF_NPZ = ("int", "float", "bool", "text")


def joint_kind(kinds: Sequence[Kind]) -> pa.DataType | None:  # noqa: C901, PLR0911  a list of cases
    """The type of a column of these kinds, written down by hand; None if the files cannot be joined."""
    known = [one for one in kinds if one.family != "null"]
    families = {one.family for one in known}
    arrows = [one.arrow for one in known]
    if families == {"list"}:
        return pa.list_(pa.float64() if pa.list_(pa.float64()) in arrows else pa.int32())
    if "list" in families:
        return None
    if families == {"int"}:
        signed = [one.bit_width for one in arrows if pa.types.is_signed_integer(one)]
        unsigned = [one.bit_width for one in arrows if pa.types.is_unsigned_integer(one)]
        if not signed:
            return getattr(pa, f"uint{max(unsigned)}")()
        return getattr(pa, f"int{min(64, max([*signed, *(2 * one for one in unsigned)]))}")()
    if families == {"float"}:
        return pa.float64() if pa.float64() in arrows else pa.float32()
    if families == {"int", "float"}:
        narrow = all(one.bit_width <= 8 for one in arrows if pa.types.is_integer(one)) and pa.float64() not in arrows
        return pa.float32() if narrow else pa.float64()
    if "decimal" in families and families <= {"decimal", "float", "int"}:
        if "float" in families:
            return pa.float64()
        pairs = [(one.precision, one.scale) if pa.types.is_decimal(one) else (DIGITS[str(one)], 0) for one in arrows]
        scale = max(scale for _, scale in pairs)
        return pa.decimal128(scale + max(precision - scale for precision, scale in pairs), scale)
    if families in ({"timestamp"}, {"duration"}):
        unit = UNITS[max(UNITS.index(one.unit) for one in arrows)]
        return getattr(pa, families.pop())(unit)
    if families == {"time"}:
        return pa.time64("us") if pa.time64("us") in arrows else pa.time32("s")
    single = {"zoned": pa.timestamp("us", "UTC"), "date": pa.date32(), "bool": pa.bool_(), "bytes": pa.binary()}
    return single[families.pop()] if len(families) == 1 and families <= single.keys() else pa.string()


def joint_of_json(values: Sequence[Any]) -> pa.DataType:
    """The type of a column of JSON values, written down by hand."""
    known = [value for value in values if value is not None]
    kinds = {type(value) for value in known}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {list}:
        return pa.list_(joint_of_json([item for value in known for item in value]))
    if kinds == {int} and min(known) >= -(2**63) and max(known) < 2**64:
        unsigned = max(known) >= 2**63
        return pa.uint64() if unsigned and min(known) >= 0 else pa.string() if unsigned else pa.int64()
    if kinds and kinds <= {int, float} and float in kinds:
        return pa.float64() if all(int(float(one)) == one for one in known if type(one) is int) else pa.string()
    return pa.string()


_MISFIT = object()


def as_kind(value: Any, kind: pa.DataType) -> Any:  # noqa: C901, PLR0911, PLR0912  a list of cases
    """A value as it is in a column of this type, or _MISFIT."""
    if value is None:
        return None
    if pa.types.is_string(kind):
        if isinstance(value, bool | list | dict):
            return json.dumps(value, ensure_ascii=False)
        return value.hex() if isinstance(value, bytes) else value if isinstance(value, str) else str(value)
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            return _MISFIT
        items = [as_kind(item, kind.value_type) for item in value]
        return _MISFIT if _MISFIT in items else items
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else _MISFIT
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if pa.types.is_integer(kind):
        low = -(2 ** (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        high = low + 2**kind.bit_width
        return int(value) if number and value == int(value) and low <= value < high else _MISFIT
    if pa.types.is_floating(kind):
        if not number or (value == int(value) and int(float(value)) != int(value)):
            return _MISFIT
        return float(np.float32(value)) if kind == pa.float32() else float(value)
    if pa.types.is_decimal(kind):
        if not isinstance(value, int | Decimal) or isinstance(value, bool):
            return _MISFIT
        fits = Decimal(value) == Decimal(value).quantize(Decimal(1).scaleb(-kind.scale)) and abs(
            Decimal(value)
        ) < Decimal(10) ** (kind.precision - kind.scale)
        return Decimal(value) if fits else _MISFIT
    kinds: dict[str, type] = {
        "timestamp": dt.datetime, "duration": dt.timedelta, "time": dt.time, "date": dt.date, "binary": bytes,
    }  # fmt: skip
    if type(value) is not next(python for name, python in kinds.items() if str(kind).startswith(name)):
        return _MISFIT
    if isinstance(value, dt.datetime) and (value.tzinfo is None) != (kind.tz is None):
        return _MISFIT
    micros = getattr(value, "microsecond", 0)
    micros += value // dt.timedelta(microseconds=1) if isinstance(value, dt.timedelta) else 0
    return _MISFIT if micros % {"s": 10**6, "ms": 1000}.get(getattr(kind, "unit", "us"), 1) else value


@dataclass
class Case:
    """A drawn input: files of rows, those that come later, and how they are run."""

    random: random.Random
    suffix: str = ""
    form: str = ""
    told: str | None = None
    files: list[tuple[str, list[Any], Kind]] = field(default_factory=list)

    def fill(self) -> None:
        r = self.random
        self.suffix = r.choice(["parquet", "arrow", "npz", "jsonl", "jsonl", "csv"])
        self.form = r.choice(["parquet", "parquet", "arrow"])
        pool = [one for one in KINDS if self.suffix != "npz" or one.family in OF_NPZ]
        if self.suffix == "parquet":
            pool = [one for one in pool if one.arrow != pa.string_view() and getattr(one.arrow, "unit", "") != "s"]
        few = r.sample(pool, r.randint(1, 2)) if r.random() < 0.3 else _alike(r, pool)
        for number in range(r.randint(2, 4)):
            kind = r.choice(few)
            values = [self._value(kind) for _ in range(r.randint(1, 6))]
            self.files.append((f"{'abcd'[number]}.{self.suffix}", values, kind))
        if r.random() < 0.25:
            self.told = r.choice(["text", "int32", "float64", "bool", "uint8", "float32"])

    def _value(self, kind: Kind) -> Any:
        r = self.random
        if self.suffix == "jsonl":
            ints: list[Any] = [r.randint(-9, 9), 2**53 + 1, 2**63 + 5, -(2**40)]
            others = [r.uniform(-9, 9), float(r.randint(-9, 9)), True, "text", "7", None, None, [1], [2.5], []]
            return r.choice(ints[: r.choice([1, 1, 1, 4])] + (others if r.random() < 0.3 else []))
        if self.suffix == "csv":
            return r.choice(["7", "-1", "2.5", "", "true", "text", "1e3", "007"])
        return None if r.random() < 0.15 and self.suffix != "npz" else kind.draw(r)

    def write(self, folder: Path, files: Sequence[tuple[str, list[Any], Kind]]) -> None:
        r = self.random
        for name, values, kind in files:
            if self.suffix == "csv":
                (folder / "in").mkdir(exist_ok=True)
                extra = r.random() < 0.3
                lines = ["k,x,more" if extra else "x,k", *(f'"{one}",1,z' if extra else f'1,"{one}"' for one in values)]
                (folder / "in" / name).write_text("\n".join(lines) + "\n")
                continue
            if self.suffix == "jsonl":
                json_rows(folder / "in" / name, values)
                continue
            numbers = pa.array([1.0] * len(values)).cast(r.choice([pa.float32(), pa.float64(), pa.int8(), pa.int64()]))
            columns = {
                "x": numbers,
                "k": pa.array(values, kind.arrow.value_type).cast(kind.arrow)
                if pa.types.is_dictionary(kind.arrow)
                else pa.array(values, kind.arrow),
            }
            if r.random() < 0.3:
                columns["more"] = pa.array(["t"] * len(values))
            write(folder / "in" / name, dict(r.sample(sorted(columns.items()), len(columns))))

    def joint(self, files: Sequence[tuple[str, list[Any], Kind]]) -> pa.DataType | None:
        """The type of the column for these files."""
        if self.told:
            return {"text": pa.string(), "float64": pa.float64(), "bool": pa.bool_()}.get(self.told) or getattr(
                pa, self.told
            )()
        if self.suffix == "csv":
            return pa.string()
        if self.suffix == "jsonl":
            return joint_of_json([value for _, values, _ in files for value in values])
        kinds = [kind for _, _, kind in files]
        if self.suffix == "npz" and {one.family for one in kinds} == {"int", "float"}:
            dtypes = [one.arrow.to_pandas_dtype() for one in kinds]
            return pa.from_numpy_dtype(np.result_type(*dtypes))
        return joint_kind(kinds)

    def wanted(self, value: Any, kind: pa.DataType) -> Any:
        if self.suffix == "csv" and not pa.types.is_string(kind):
            return _parsed(value, kind)
        return as_kind(value, kind)


def _alike(r: random.Random, pool: Sequence[Kind]) -> list[Kind]:
    family = r.choice([one.family for one in pool])
    related = {"int": {"int", "float"}, "decimal": {"decimal", "int"}}.get(family, {family})
    return [one for one in pool if one.family in related or one.family == "null"]


def _parsed(cell: str, kind: pa.DataType) -> Any:
    if not cell:
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "1": True, "false": False, "0": False}.get(cell, _MISFIT)
    with suppress(ValueError):
        return as_kind(float(cell) if set(cell) & set(".e") else int(cell), kind)
    return _MISFIT


@pytest.mark.slow
@pytest.mark.parametrize("number", range(CASES))
def test_random_inputs_give_one_table(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    case = Case(random.Random(f"{SEED}-{number}"))  # noqa: S311  to be drawn again
    case.fill()
    r = case.random
    types = f", types: {{k: {case.told}}}" if case.told else ""
    manifest = deploy(tmp_path, size=r.randint(1, 3), form=case.form, per_part=r.randint(1, 5), types=types)
    cut = r.randint(1, len(case.files))
    first, later = case.files[:cut], case.files[cut:]
    case.write(tmp_path, first)
    kind = case.joint(first)
    rows = [value for _, values, _ in first for value in values]
    if kind is None:
        said = cli("apply", manifest, "-q")
        assert said.code == 1
        assert "no type holds both" in said.words
        return
    if not [value for value in rows if case.wanted(value, kind) is not _MISFIT]:
        return  # none of the first rows can be run
    _run(cli, tmp_path, manifest, case, monkeypatch)
    _check(tmp_path, case, kind, rows)
    if later and case.joint(later) is not None:
        case.write(tmp_path, later)
        arrived = [value for _, values, _ in later for value in values]
        done = _apply(cli, manifest, r)
        if not [one for one in arrived if case.wanted(one, kind) is not _MISFIT] and done != 0:
            return
        assert done == 0
        rows += arrived
        _check(tmp_path, case, kind, rows)
    if r.random() < 0.5:
        assert cli("compact", manifest, "-q").code == 0
        _check(tmp_path, case, kind, rows)
    if r.random() < 0.3 and failed(tmp_path):
        cli("retry", manifest, "-q")
        _check(tmp_path, case, kind, rows)


def _apply(cli: Cli, manifest: Path, r: random.Random) -> int:
    """Apply, perhaps killed at some events before."""
    for _ in range(r.choice([0, 0, 1, 2])):
        with killed_at(r.randint(1, 12)):
            cli("apply", manifest, "-q")
    return cli("apply", manifest, "-q").code


def _run(cli: Cli, folder: Path, manifest: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the first files: alone, as a version that keeps no types, or in shards."""
    r = case.random
    how = r.choice(["alone", "alone", "earlier", "shards"])
    if how == "shards":
        plan = folder / "plan.json"
        assert cli("plan", manifest, "--out", plan, "-q").code == 0
        for index in r.sample(range(3), 3):
            assert cli("apply", plan, "--shard", f"{index}/3", "-q").code == 0
        done = cli("finish", plan, "-q")
        assert done.code == 0, done.out
        return
    with monkeypatch.context() as patch:
        if how == "earlier":
            forget_types(patch)
        assert _apply(cli, manifest, r) == 0


def _check(folder: Path, case: Case, kind: pa.DataType, rows: Sequence[Any]) -> None:
    """Compare what is there with what the model says of the rows."""
    wanted = {row: case.wanted(value, kind) for row, value in enumerate(rows)}
    fits = {row: value for row, value in wanted.items() if value is not _MISFIT}
    table = written(folder)
    found = table.schema.field("k").type
    as_parquet = str(kind).replace("time32[s]", "time32[ms]").replace("timestamp[s]", "timestamp[ms]")
    assert str(found).replace("element", "item") in {
        str(kind),
        as_parquet if "parquet" in {case.form, case.suffix} else "",
    }
    assert table["row"].to_pylist() == list(fits)
    if not (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        assert table["k"].to_pylist() == list(fits.values())
    assert failed(folder).keys() == wanted.keys() - fits.keys()
