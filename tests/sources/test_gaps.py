"""Nulls, empty cells and lists that are no tensor: the row fails by its number, or is filled; others go on."""

import json
from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Cli, read_rows
from onnx import TensorProto, helper
from pyarrow import parquet
from support.models import save_model

from ortdeploy.facts.data import Dialect, InputFacts
from ortdeploy.sources.catalogue import look_at, open_input
from ortdeploy.sources.protocol import Wanted

FORMATS = ("arrow", "csv", "jsonl", "parquet")


def write(folder: Path, form: str, column: "pa.Array") -> str:
    """Write a table of one column x, with nulls as the format has them."""
    path, table = folder / f"a.{form}", pa.table({"x": column, "id": list(range(len(column)))})
    if form == "parquet":
        parquet.write_table(table, path)
    elif form == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        path.write_text("x,id\n" + "".join(f"{'' if x is None else x},{n}\n" for n, x in enumerate(column.to_pylist())))
    return str(path)


def read(path: str, dtype: str, size: int = 3, **wanted: Any) -> tuple[dict[int, Any], dict[int, str]]:
    """Return values and codes by row."""
    asked = Wanted(dtypes={"x": dtype}, keys=("id",), **wanted)
    values: dict[int, Any] = {}
    failed: dict[int, str] = {}
    with open_input(Path(path).suffix[1:], [path], str(Path(path).parent), asked) as source:
        for block in source.blocks(0, repeat(size)):
            assert block.count == len(block.rows) + len(block.failed)
            assert [int(one) for one in block.columns["id"]] == list(block.rows)
            values |= {row: np.asarray(one).tolist() for row, one in zip(block.rows, block.columns["x"], strict=True)}
            failed |= {one.row: one.code for one in block.failed}
    return values, failed


ALONE: Mapping[str, tuple[Sequence[Any], Any, str, Any]] = {
    "booleans": ([True, None, False], pa.bool_(), "bool", True),
    "numbers": ([1.5, None, 2.5], pa.float32(), "float32", 7.0),
    "whole numbers": ([2**53 + 1, None, -(2**63)], pa.int64(), "int64", 2**53 + 3),
    "text": (["a", None, "b"], pa.string(), "string", "c"),
    "texts of a dictionary": (["a", None, "b"], pa.dictionary(pa.int32(), pa.string()), "string", "c"),
    "nulls alone, as numbers": ([None, None, None], pa.null(), "float32", 7.0),
    "nulls alone, as text": ([None, None, None], pa.null(), "string", "c"),
    "nulls alone, as booleans": ([None, None, None], pa.null(), "bool", False),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("case", ALONE)
@pytest.mark.parametrize("size", [1, 3])
def test_a_null_fails_its_row_or_is_filled(tmp_path: Path, form: str, case: str, size: int) -> None:
    """Also where a block has no other value."""
    values, kind, dtype, filler = ALONE[case]
    path = write(tmp_path, form, pa.array(values, pa.string() if "dictionary" in case else kind).cast(kind))
    gaps = [row for row, value in enumerate(values) if value is None]
    there = {row: value for row, value in enumerate(values) if value is not None}
    none = {"missing": {"x": None}} if form == "csv" and dtype == "string" else {}  # whose empty cells are text
    found, failed = read(path, dtype, size, **none)
    assert (found, list(failed)) == (there, gaps)
    assert set(failed.values()) <= {"missing-value", "empty-value", "not-text"}
    found, failed = read(path, dtype, size, missing={"x": filler})
    assert (found, failed) == ({**there, **dict.fromkeys(gaps, filler)}, {})


LISTS: Mapping[str, tuple[Any, Sequence[Any], Mapping[int, str], Mapping[int, str]]] = {
    "of lists": (
        pa.list_(pa.list_(pa.float32())),
        [[[1, 2]], None, [[1], None], [[1], [2, 3]], [[1, None]], [], [[]]],
        {1: "missing-value", 2: "missing-value", 3: "not-a-tensor", 4: "missing-value"},
        {1: "missing-value", 2: "missing-value", 3: "not-a-tensor"},
    ),
    "of one size": (
        pa.list_(pa.float32(), 2),
        [[1, 2], None, [None, 4]],
        {1: "missing-value", 2: "missing-value"},
        {1: "missing-value"},
    ),
    "of nulls": (
        pa.list_(pa.null()),
        [[], None, [None]],
        {1: "missing-value", 2: "missing-value"},
        {1: "missing-value"},
    ),
}


@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("case", LISTS)
@pytest.mark.parametrize("size", [1, 2, 9])
def test_lists_with_gaps_fail_alone(tmp_path: Path, form: str, case: str, size: int) -> None:
    """A filler stands for an element, and for no list."""
    kind, values, unfilled, filled = LISTS[case]
    path = write(tmp_path, form, pa.array(values, kind))
    for missing, codes in (({}, unfilled), ({"x": 9.0}, filled)):
        found, failed = read(path, "float32", size, missing=missing)
        assert failed == codes
        assert found == {row: _filled(one) for row, one in enumerate(values) if row not in codes}


def _filled(value: Any) -> Any:
    return [_filled(item) for item in value] if isinstance(value, list) else 9.0 if value is None else value


@pytest.mark.parametrize("form", FORMATS)
def test_texts_that_the_manifest_names_are_nulls(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form, pa.array(["a", "NA", " - ", "NAN", None, "null"]))
    empty = Dialect(empty=("NA", "-", "null"))
    found, failed = read(path, "string", missing={"x": "?"}, dialect=empty)
    assert (list(found.values()), failed) == (["a", "?", "?", "NAN", "?", "?"], {})
    found, failed = read(path, "string", missing={"x": None}, dialect=empty)
    assert (found, list(failed)) == ({0: "a", 3: "NAN"}, [1, 2, 4, 5])


def test_what_does_not_fit_a_column_fails_the_rows_that_it_would_fill(tmp_path: Path) -> None:
    for values, kind, filler in (([1, None], pa.int64(), "x"), ([1, None], pa.int64(), 1.5), ([[1, None]], None, "x")):
        path = write(tmp_path, "parquet", pa.array(values, kind))
        _, failed = read(path, "int64", missing={"x": filler})
        assert list(failed.values()) == ["not-a-number"]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize(("element", "filler"), [("FLOAT", 7.0), ("INT64", 7), ("STRING", "a"), ("BOOL", True)])
@pytest.mark.quick("BOOL-True-parquet", "INT64-7-arrow")
def test_a_column_of_nulls_alone_runs(cli: Cli, tmp_path: Path, form: str, element: str, filler: Any) -> None:
    kind: tuple[int, list[int | str | None]] = (int(TensorProto.DataType.Value(element)), ["batch"])
    save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    write(tmp_path, form, pa.nulls(3))
    for missing, wanted in (("", []), (f", missing: {{x: {json.dumps(filler)}}}", [filler] * 3)):
        (tmp_path / "m.yaml").write_text(
            f"version: 1\nmodels: {{m: {{path: m.onnx}}}}\njobs:\n  j:\n    model: m\n    errors: {{max_failed: 3}}\n"
            f"    input: {{path: a.{form}{missing}}}\n    batch: {{size: 1}}\n    output: {{path: out{len(wanted)}}}\n"
        )
        result = cli("apply", tmp_path / "m.yaml")
        assert result.code == 0, result.out
        assert [row["y"] for row in read_rows(tmp_path / f"out{len(wanted)}")] == wanted


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[{"a": 1}, {"a": 2}]\n', "a JSON array. Write each object on a line of its own"),
        ('[\n{"a": [\n1]}\n]\n', "A JSON document of several lines begins here"),
        ('{\n  "a": 1\n}\n', "A JSON document of several lines begins here"),
        ('{"a": 1}{"a": 2}\n', "There is more than one JSON value in it"),
        ('{"a": 1}\r{"a": 2}\r', "There is more than one JSON value in it"),
        ('{"a": 1\0}\n', "NUL bytes"),
    ],
)
def test_json_that_is_not_in_lines_is_named(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    problem = look_at("jsonl", [str(tmp_path / "a.jsonl")], InputFacts(format="jsonl")).problem
    assert problem is not None
    assert "a.jsonl:1: " in problem.detail
    assert words in problem.detail


def test_a_column_of_json_lines_has_the_rank_of_most_values(tmp_path: Path) -> None:
    """Not that of the first one, which may be what is wrong."""
    lines = ["null", '"abc"', "[1, 2]", "[3, 4]", "[[5]]", "[6, 7]"]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {value}, "id": 0}}\n' for value in lines))
    facts = look_at("jsonl", [str(tmp_path / "a.jsonl")], InputFacts(format="jsonl"))
    assert facts.columns["x"].shape == ("rows", 2)


def test_lines_that_are_no_json_fail_alone_wherever_they_are(tmp_path: Path) -> None:
    """The columns are those of the lines that can be read; a byte order mark belongs to none."""
    lines = ["\ufeff", '{"x": 1}{"x": 2}', '{"x": 3, "id": 2}', "{", '{"x": 4, "id": 4}', "[1]", '{"x": 5\0}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    facts = look_at("jsonl", [str(tmp_path / "a.jsonl")], InputFacts(format="jsonl"))
    assert (facts.problem, list(facts.columns)) == (None, ["x", "id"])
    found, failed = read(str(tmp_path / "a.jsonl"), "int64")
    assert (found, failed) == ({2: 3, 4: 4}, dict.fromkeys([0, 1, 3, 5, 6], "not-json"))
