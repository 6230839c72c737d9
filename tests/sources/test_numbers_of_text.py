"""Numbers in CSV and JSON lines: what is read is what is written, or the row fails; whatever stands in other rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.json_texts import as_json

from ortdeploy.results.rows import Block
from ortdeploy.sources import jsonl
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.protocol import Wanted

READ: dict[str, list[tuple[str, Any]]] = {
    "int64": [
        ("16777217", 16777217),
        ("9007199254740993", 9007199254740993),
        ("-9223372036854775808", -(2**63)),
        ("1.0", 1),
        ("9007199254740993.0", 9007199254740993),
        ("1e18", 10**18),
        ("2.5e1", 25),
    ],
    "uint64": [("18446744073709551615", 2**64 - 1)],
    "float32": [("0.1", 0.1), ("-2e3", -2000.0), ("1e-400", 0.0), ("16777217", 16777216.0)],
    "float64": [("1e308", 1e308), ("9007199254740992", 2.0**53)],
}
REFUSED = {
    "int64": ["1.5", "1_000", "9223372036854775808", "0.99999999999999999999", "1e999999999", "1e-999999999", "NaN"],
    "uint8": ["256", "-1", "1e3"],
    "float16": ["70000"],
    "float32": ["1e39", "-1e39", "1e400", "-1e400", "1_0"],
    "float64": ["1e400", "1" + "0" * 400, "1" + "0" * 400 + ".0"],
}
TEXT = ["١٢", "1\u00a0", "1 000", "0x10", "1e", "--1", "one"]
"""What is no number, in a CSV cell and in a JSON text."""


def read(folder: Path, kind: str, dtype: str, written: list[str]) -> Block:
    """Read one column; what JSON has no number for is a text there."""
    if kind == "csv":
        content = "x\n" + "".join(f"{one}\n" for one in written)
    else:
        content = "".join(f'{{"x": {as_json(one)}}}\n' for one in written)
    (folder / f"a.{kind}").write_text(content, encoding="utf-8")
    wanted = Wanted(dtypes={"x": dtype}, keys=("row",))
    with SOURCES[kind].open_source([str(folder / f"a.{kind}")], str(folder), wanted) as source:
        (block,) = source.blocks(0, [len(written)])
    return block


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("dtype", READ)
def test_numbers_are_read_as_they_are_written(tmp_path: Path, kind: str, dtype: str) -> None:
    for text, number in READ[dtype]:
        for mates in ([], ["1"], ["oops"], ["1.0"]):
            block = read(tmp_path, kind, dtype, [text, *mates])
            assert 0 in block.rows, (text, block.failed)
            column = block.columns["x"]
            assert np.asarray(column)[0] == np.array(number, dtype=dtype), text
            assert np.asarray(column).dtype == dtype


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_small_floats_are_rounded_from_float64(tmp_path: Path, kind: str) -> None:
    """The number is above the middle between two of float32, and float64 has only the middle."""
    for mates in ([], ["oops"]):
        assert np.asarray(read(tmp_path, kind, "float32", ["1.00000005960464477540", *mates]).columns["x"])[0] == 1


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("dtype", REFUSED)
def test_what_a_type_does_not_hold_fails_its_row_alone(tmp_path: Path, kind: str, dtype: str) -> None:
    for text in [*REFUSED[dtype], *TEXT]:
        for mates in (["1"], ["1", "2.0"]):
            block = read(tmp_path, kind, dtype, [text, *mates])
            assert [(row.row, row.code) for row in block.failed] == [(0, "not-a-number")], text
            assert np.asarray(block.columns["x"]).tolist() == [1, 2][: len(mates)]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_infinity_and_nan_are_read_where_they_are_written(tmp_path: Path, kind: str) -> None:
    block = read(tmp_path, kind, "float32", ["Infinity", "-Infinity", "NaN", "1"])
    assert not block.failed
    assert np.array_equal(np.asarray(block.columns["x"]), [np.inf, -np.inf, np.nan, 1], equal_nan=True)


def test_a_column_beside_one_that_is_looked_at_alone_keeps_its_rows(tmp_path: Path) -> None:
    lines = ['{"n": 1, "f": [0.5, 1]}', '{"n": 1.5, "f": [1.5, 2]}', '{"n": 3.0, "f": [2.5, 3]}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    wanted = Wanted(dtypes={"f": "float32", "n": "int8"}, keys=("n", "row"))
    with SOURCES["jsonl"].open_source([str(tmp_path / "a.jsonl")], str(tmp_path), wanted) as source:
        (block,) = source.blocks(0, [3])
    assert list(block.columns) == ["f", "n", "row"]
    assert np.asarray(block.columns["f"]).tolist() == [[0.5, 1.0], [2.5, 3.0]]
    assert (np.asarray(block.columns["n"]).tolist(), block.columns["row"]) == ([1, 3], [0, 2])
    (failed,) = block.failed
    assert (failed.key["n"], failed.message) == (1.5, "1.5 is not int8: it is not a whole number")


def test_a_number_is_no_text_also_where_it_is_looked_at_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"s": 1.5, "n": 1.0}\n{"s": "1.5", "n": 2.0}\n')
    wanted = Wanted(dtypes={"s": "string", "n": "int8"})
    with SOURCES["jsonl"].open_source([str(tmp_path / "a.jsonl")], str(tmp_path), wanted) as source:
        (block,) = source.blocks(0, [2])
    assert [(row.row, row.message) for row in block.failed] == [(0, "1.5 is not text")]


@pytest.mark.parametrize("key", ["1e400", "-1e999"])
def test_a_key_that_no_floating_number_holds_fails_its_row(tmp_path: Path, key: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"x": 1, "k": {key}}}\n{{"x": 2, "k": Infinity}}\n')
    with SOURCES["jsonl"].open_source(
        [str(tmp_path / "a.jsonl")], str(tmp_path), Wanted(dtypes={"x": "float32"}, keys=("k",))
    ) as source:
        (block,) = source.blocks(0, [2])
    assert [(row.row, row.code) for row in block.failed] == [(0, "not-a-number")]
    assert block.columns["k"] == [np.inf]


@pytest.mark.parametrize(
    "key", ["9007199254740993.0", "-9007199254740993.00", "[1, 9007199254740993.0]", '{"a": 18446744073709551617.0}']
)
def test_a_key_that_would_become_another_whole_number_fails_its_row(tmp_path: Path, key: str) -> None:
    kept = [
        "9007199254740992.0",
        "9007199254740993",
        "1e23",
        "0.1",
        '"9007199254740993.0"',
        "[9007199254740993]",
        "NaN",
    ]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x": 1, "k": {one}, "id": "i"}}\n' for one in (key, *kept)))
    wanted = Wanted(dtypes={"x": "float32"}, keys=("k", "id"))
    with SOURCES["jsonl"].open_source([str(tmp_path / "a.jsonl")], str(tmp_path), wanted) as source:
        (block,) = source.blocks(0, [8])
    (failed,) = block.failed
    assert (failed.row, failed.code) == (0, "not-a-number")
    assert "which a floating number rounds; write it without a point" in failed.message
    assert json.dumps(failed.key) == json.dumps({"k": json.loads(key, parse_float=str), "id": "i"})
    assert repr(block.columns["k"]) == repr([json.loads(one) for one in kept])


@pytest.mark.parametrize(("dtype", "rows"), [("int64", [[1, 2], [], [3]]), ("float32", [[0.5], [1, 2.5], []])])
def test_lists_of_different_lengths_are_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, rows: list[list[float]]
) -> None:
    """Decoding lines again, with numbers as they are written, takes longer than all the rest."""
    monkeypatch.setattr(jsonl, "_decode_exactly", pytest.fail)
    block = read(tmp_path, "jsonl", dtype, [json.dumps(row) for row in rows])
    assert not block.failed
    assert [row.tolist() for row in block.columns["x"]] == rows
    assert {row.dtype for row in block.columns["x"]} == {np.dtype(dtype)}


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_comma_in_a_number_is_told_what_a_number_has(tmp_path: Path, dtype: str) -> None:
    (failed,) = read(tmp_path, "csv", dtype, ['"1,5"']).failed
    assert "a point before its decimals" in failed.message
