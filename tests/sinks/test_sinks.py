"""What each output format writes, read back."""

import csv
import io
import json
import tracemalloc
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.sinks import protocol
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.tensors.columns import Column, constant

FIRST: dict[str, Column] = {
    "key": ["a", "ü,\n"],
    "digit": np.array([1, 2], dtype=np.int64),
    "scores": np.array([[0.1, 0.9], [0.5, np.nan]], dtype=np.float32),
    "name": np.array(["x", "y"], dtype=object),
    "flag": np.array([True, False]),
}


def write(kind: str, batches: Sequence[dict[str, Column]], columns: Sequence[str] = tuple(FIRST)) -> bytes:
    file = io.BytesIO()
    sink = SINKS[kind].open_sink(file, dict.fromkeys(columns), "{}", {})
    for batch in batches:
        sink.write(batch)
    sink.close()
    return file.getvalue()


def test_jsonl_keeps_every_bit_and_makes_null_of_nan() -> None:
    rows = [json.loads(line) for line in write("jsonl", [FIRST]).decode().splitlines()]
    assert [row["key"] for row in rows] == ["a", "ü,\n"]
    assert np.float32(rows[0]["scores"][0]) == np.float32(0.1)
    assert rows[1]["scores"] == [0.5, None]
    assert list(rows[0]) == list(FIRST)
    assert rows[0]["flag"] is True


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_jsonl_floats_read_back_bit_for_bit(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    rows = [json.loads(line)["x"] for line in write("jsonl", [{"x": array}], ["x"]).decode().splitlines()]
    for written, value in zip(rows, array, strict=True):
        assert written is None if not np.isfinite(value) else np.float32(written) == value


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(("rows", "width"), [(4096, 16), (64, 1024)])
def test_a_large_block_becomes_text_piece_by_piece_with_the_bytes_of_its_rows(
    kind: str, rows: int, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text and Python's numbers take twenty times what an array does. Here a piece has 4,096 numbers instead of 65,536."""
    monkeypatch.setattr(protocol, "_TEXT_VALUES", 4096)
    numbers = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    block: dict[str, Column] = {"row": np.arange(rows), "name": [f"ü{row}" for row in range(rows)], "x": numbers}
    with (tmp_path / "part").open("wb") as file:
        sink = SINKS[kind].open_sink(file, dict.fromkeys(block), "{}", {})
        tracemalloc.start()
        sink.write(block)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        sink.close()
    assert taken < 2 * SINKS[kind].BLOCK_COPIES * SINKS[kind].PIECE / 16  # of all at once, it is twelve times that
    some = [{name: column[row : row + 5] for name, column in block.items()} for row in range(0, 15, 5)]
    written = (tmp_path / "part").read_bytes()
    assert written.startswith(write(kind, some, tuple(block)))
    assert written.count(b"\n") == rows + (kind == "csv")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("shorter", ["row", "x"])
def test_columns_of_several_lengths_are_refused(kind: str, shorter: str) -> None:
    block: dict[str, Column] = {"row": np.arange(3), "x": np.zeros((3, 70_000), dtype=np.float32)}
    block[shorter] = block[shorter][:2]
    with pytest.raises(ValueError, match=r"columns have \[2, 3\] rows"):
        write(kind, [block], tuple(block))


def csv_rows(content: bytes) -> list[list[str]]:
    """What a reader that knows nothing of ortdeploy finds."""
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


@pytest.mark.parametrize("text", ["a\rb", "\r", "a\r", "a\r\nb", "a\nb", "\r\n", '"\r"', "a,b\r", "x" * 200_000])
def test_a_text_of_a_csv_stays_in_its_cell(tmp_path: Path, text: str) -> None:
    rows: dict[str, Column] = {"key": ["first", text, "last"], "row": [0, 1, 2]}
    part = tmp_path / "part.csv"
    part.write_bytes(write("csv", [rows], list(rows)))
    merged = io.BytesIO()
    SINKS["csv"].merge([part], [2, 1, 0], merged)
    assert csv.field_size_limit() > len(text)
    assert csv_rows(part.read_bytes())[1:] == [["first", "0"], [text, "1"], ["last", "2"]]
    assert csv_rows(merged.getvalue())[1:] == [["last", "2"], [text, "1"], ["first", "0"]]
    assert SINKS["csv"].row_numbers(part) == [0, 1, 2]


@given(st.lists(st.text(alphabet=st.sampled_from('a,\r\n" \t\u2028é')), min_size=1, max_size=6))
def test_texts_of_a_csv_read_back(texts: list[str]) -> None:
    rows = csv_rows(write("csv", [{"x": list(texts), "n": np.arange(len(texts))}], ["x", "n"]))
    assert rows == [["x", "n"], *([text, str(number)] for number, text in enumerate(texts))]


def test_a_csv_with_a_carriage_return_without_quotes_is_not_taken_apart(tmp_path: Path) -> None:
    """As parts of ortdeploy 0.1.0 may have it: the rest of the text is not another row."""
    part = tmp_path / "part.csv"
    part.write_bytes(b"key,row\na\rb,0\nc,1\n")
    with pytest.raises(OrtdeployError, match=r"part\.csv cannot be read.*carriage return"):
        SINKS["csv"].merge([part], [1, 0], io.BytesIO())
    with pytest.raises(OrtdeployError, match="--new-run"):
        SINKS["csv"].row_numbers(part)


def test_csv_spreads_vectors_over_columns() -> None:
    rows = list(csv.DictReader(io.StringIO(write("csv", [FIRST, FIRST]).decode(), newline="")))
    assert len(rows) == 4
    assert list(rows[0]) == ["key", "digit", "scores.0", "scores.1", "name", "flag"]
    assert rows[1]["key"] == "ü,\n"
    assert np.float32(rows[0]["scores.1"]) == np.float32(0.9)
    assert rows[1]["scores.1"] == "nan"


@pytest.mark.parametrize("kind", sorted(SINKS))
@pytest.mark.parametrize("value", ["pages/ü.png", "", "\udcff.png"])
def test_a_column_of_one_value_is_written_as_any_other(kind: str, value: str) -> None:
    key, long = constant(value, 5000), [value] * 5000
    assert write(kind, [{"key": key}], ["key"]) == write(kind, [{"key": long}], ["key"])
    mixed = write(kind, [{"key": key}, {"key": ["other"]}, {"key": constant("", 0)}], ["key"])
    assert mixed == write(kind, [{"key": [*long, "other"]}], ["key"])


def test_csv_refuses_rows_of_another_shape() -> None:
    batches: list[dict[str, Column]] = [{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}]
    with pytest.raises(ValueError, match="use jsonl"):
        write("csv", batches, ["x"])


def test_npz_joins_batches_without_pickle() -> None:
    with np.load(io.BytesIO(write("npz", [FIRST, FIRST])), allow_pickle=False) as archive:
        assert archive["digit"].tolist() == [1, 2, 1, 2]
        assert archive["scores"].dtype == np.float32
        assert archive["name"].tolist() == ["x", "y", "x", "y"]
        assert archive["key"].tolist() == ["a", "ü,\n", "a", "ü,\n"]


def test_csv_refuses_rows_of_another_shape_where_a_piece_has_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_TEXT_VALUES", 2)
    with pytest.raises(ValueError, match="rows of x differ in shape, which CSV cannot hold"):
        write("csv", [{"x": [np.zeros(2), np.zeros(3)]}], ["x"])


def test_npz_refuses_rows_of_another_shape() -> None:
    batches: list[dict[str, Column]] = [{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}]
    with pytest.raises(ValueError, match="use jsonl"):
        write("npz", batches, ["x"])


@pytest.mark.parametrize("kind", SINKS)
def test_a_part_has_the_same_bytes_every_time(kind: str) -> None:
    assert write(kind, [FIRST]) == write(kind, [FIRST])


def test_parquet_has_dictionaries_for_all_but_floating_numbers() -> None:
    columns: dict[str, Column] = {
        **FIRST,
        "labels": [np.array([1, 1]), np.array([2, 1, 1])],
        "boxes": [np.zeros((2, 4), np.float32), np.zeros((1, 4), np.float32)],
        "shares": [{"a": 0.5}, {"b": 0.5}],
    }
    group = parquet.ParquetFile(io.BytesIO(write("parquet", [columns], tuple(columns)))).metadata.row_group(0)
    leaves = [group.column(index) for index in range(group.num_columns)]
    assert {leaf.path_in_schema for leaf in leaves if "RLE_DICTIONARY" in leaf.encodings} == {
        "key", "digit", "name", "labels.list.element", "shares.key_value.key",
    }  # fmt: skip


def test_an_archive_says_where_it_comes_from_and_equal_rows_are_equal_bytes() -> None:
    columns: dict[str, Column] = {"y": np.arange(6, dtype=np.float32).reshape(3, 2)}
    written = []
    for cuts in ([3], [1, 2]):
        file, start = io.BytesIO(), 0
        sink = SINKS["npz"].open_sink(file, {"y": (2,)}, '{"plan": "abc"}', {})
        for rows in cuts:
            sink.write({"y": np.asarray(columns["y"])[start : start + rows]})
            start += rows
        sink.close()
        written.append(file.getvalue())
    assert written[0] == written[1]
    with zipfile.ZipFile(io.BytesIO(written[0])) as archive:
        assert archive.comment == b'{"plan": "abc"}'
    assert np.load(io.BytesIO(written[0]))["y"].tolist() == np.asarray(columns["y"]).tolist()


@pytest.mark.parametrize(
    "values", [np.arange(8, dtype=np.int16).reshape(4, 2), np.array(["a", "bb", "ccc", "d"], object)]
)
def test_two_npy_parts_are_merged_in_the_order_of_their_rows(tmp_path: Path, values: np.ndarray) -> None:
    for name, places in (("old.npy", [0, 3]), ("new.npy", [1, 2])):
        with (tmp_path / name).open("wb") as file:
            sink = SINKS["npy"].open_sink(file, {"y": None}, "{}", {})
            sink.write({"y": values[places]})
            sink.close()
    with (tmp_path / "merged.npy").open("wb") as file:
        SINKS["npy"].merge([tmp_path / "old.npy", tmp_path / "new.npy"], [0, 2, 3, 1], file)
    assert np.load(tmp_path / "merged.npy").tolist() == values.tolist()
    with (tmp_path / "alone.npy").open("wb") as file:
        SINKS["npy"].merge([tmp_path / "new.npy"], [1, 0], file)
    assert np.load(tmp_path / "alone.npy").tolist() == [values.tolist()[2], values.tolist()[1]]


@pytest.mark.parametrize("kind", ["npz", "npy"])
@pytest.mark.parametrize(
    "values",
    [[True, 2], [1, None], [-1, 2**63 + 1], [2**53 + 1, 0.5], ["a", 1], [[1, 2], [True, 3]], [{"a": 1}, {"b": 2}]],
)
def test_an_array_takes_no_values_that_would_change(kind: str, values: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"rows of k|values of k"):
        write(kind, [{"k": values}], ["k"])


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_rows_of_several_shapes_and_types_get_one_that_holds_them(kind: str) -> None:
    """pyarrow makes 2 of 2.5 if it is told that a list holds whole numbers, as the first row does."""
    rows: Column = [np.array([1, 2], np.uint8), np.array([2.5], np.float32), np.array([300, -1, 0], np.int16)]
    file = io.BytesIO(write(kind, [{"x": rows}], ["x"]))
    found = parquet.read_table(file) if kind == "parquet" else pa.ipc.open_file(file).read_all()
    assert found.column("x").to_pylist() == [[1, 2], [2.5], [300, -1, 0]]


def test_blocks_of_several_types_are_joined_as_they_are() -> None:
    blocks: list[dict[str, Column]] = [{"k": [1, 2**53 + 1]}, {"k": [2**63 + 1]}]
    with np.load(io.BytesIO(write("npz", blocks, ["k"]))) as arrays:
        assert arrays["k"].tolist() == [1, 2**53 + 1, 2**63 + 1]
    for other in ([0.5], [True], ["a"], [-1]):
        with pytest.raises(ValueError, match=r"of which an array holds one|no element type holds"):
            write("npz", [{"k": [2**53 + 1]}, {"k": [2**63 + 1]}, {"k": other}], ["k"])


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_maps_of_values_of_several_types_are_structs(kind: str, tmp_path: Path) -> None:
    span = {"text": "Köln", "start": 3, "score": 0.5}
    blocks: list[dict[str, Column]] = [{"spans": [], "by": []}, {"spans": [span], "by": [{"a": 0.5, "b": 1.0}]}]
    (tmp_path / "part").write_bytes(write(kind, blocks, ["spans", "by"]))
    read = parquet.read_table if kind == "parquet" else lambda path: pa.ipc.open_file(path).read_all()
    assert read(tmp_path / "part").to_pylist() == [{"spans": span, "by": [("a", 0.5), ("b", 1.0)]}]
