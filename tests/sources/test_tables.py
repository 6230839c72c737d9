"""Parquet and Arrow: every kind of column comes in as it went out, in any blocks; gaps fail their rows alone."""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from support.effort import effort

from ortdeploy.facts.data import InputFacts
from ortdeploy.results.rows import Block
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.tables import ORIGIN
from ortdeploy.sources.catalogue import SOURCES, look_at
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.tables.arrow_values import TableError
from ortdeploy.tensors.arrow_types import type_name
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.types import ROWS, TensorType

KINDS = ("arrow", "parquet")
FILES = (*KINDS, "arrows")
ROW_COUNT = 23


def save(path: Path, table: pa.Table, rows_a_group: int = 5) -> None:
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rows_a_group)
    else:
        new = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_a_group)


def read(folder: Path, names: Sequence[str], wanted: Wanted, *, start: int = 0, size: int = 4) -> list[Block]:
    kind = "parquet" if names[0].endswith("parquet") else "arrow"
    with SOURCES[kind].open_source([str(folder / name) for name in names], str(folder), wanted) as source:
        return list(source.blocks(start, repeat(size)))


def table() -> pa.Table:
    numbers = np.arange(ROW_COUNT * 6, dtype=np.float32)
    flat = pa.array(numbers)
    return pa.table(
        {
            "number": pa.array(range(ROW_COUNT), pa.int64()),
            "half": pa.array(np.arange(ROW_COUNT, dtype=np.float16)),
            "flag": pa.array([row % 3 == 0 for row in range(ROW_COUNT)]),
            "text": pa.array([f"tëxt {row}" for row in range(ROW_COUNT)]),
            "word": pa.array([f"w{row % 2}" for row in range(ROW_COUNT)]).dictionary_encode(),
            "vector": pa.FixedSizeListArray.from_arrays(flat, 6),
            "matrix": pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 3), 2),
            "list": pa.ListArray.from_arrays(pa.array(range(0, ROW_COUNT * 6 + 1, 6), pa.int32()), flat),
            "ragged": pa.array([[1.0] * (row % 3) for row in range(ROW_COUNT)], pa.list_(pa.float32())),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(numbers.reshape(ROW_COUNT, 3, 2)),
        }
    )


EXPECTED: dict[str, Callable[[int], Any]] = {
    "number": lambda row: row,
    "half": float,
    "flag": lambda row: row % 3 == 0,
    "text": lambda row: f"tëxt {row}",
    "word": lambda row: f"w{row % 2}",
    "vector": lambda row: list(range(row * 6, row * 6 + 6)),
    "matrix": lambda row: [list(range(row * 6, row * 6 + 3)), list(range(row * 6 + 3, row * 6 + 6))],
    "list": lambda row: list(range(row * 6, row * 6 + 6)),
    "ragged": lambda row: [1.0] * (row % 3),
    "tensor": lambda row: np.arange(row * 6, row * 6 + 6).reshape(3, 2).tolist(),
}


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.parametrize("kind", FILES)
def test_probing_tells_types_and_rows(tmp_path: Path, kind: str) -> None:
    save(tmp_path / f"a.{kind}", table())
    found = look_at(kind.removesuffix("s"), [str(tmp_path / f"a.{kind}")], InputFacts(format=kind))
    assert found.rows == ROW_COUNT
    assert found.columns["number"] == TensorType("int64", (ROWS,))
    assert found.columns["half"] == TensorType("float16", (ROWS,))
    assert found.columns["word"] == TensorType("string", (ROWS,))
    assert found.columns["matrix"] == TensorType("float32", (ROWS, 2, 3))
    assert found.columns["ragged"] == TensorType("float32", (ROWS, None))
    assert found.columns["tensor"] == TensorType("float32", (ROWS, 3, 2))


@pytest.mark.parametrize("kind", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(10, 50), deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 40), st.integers(1, 2))
def test_every_kind_of_column_is_read_in_any_blocks(
    tmp_path: Path, kind: str, rows_a_group: int, size: int, start: int, files: int
) -> None:
    names = [f"{number}.{kind}" for number in range(files)]
    for name in names:
        save(tmp_path / name, table(), rows_a_group)
    wanted = Wanted(dtypes=dict.fromkeys(EXPECTED), keys=("path", "row"))
    blocks = read(tmp_path, names, wanted, start=start, size=size)
    rows = [number for block in blocks for number in block.rows]
    assert rows == list(range(start, files * ROW_COUNT))
    assert [plain(row) for block in blocks for row in block.columns["row"]] == rows
    assert [path for block in blocks for path in block.columns["path"]] == [names[row // ROW_COUNT] for row in rows]
    for name, value in EXPECTED.items():
        assert [plain(one) for block in blocks for one in block.columns[name]] == [value(r % ROW_COUNT) for r in rows]


def test_tensors_that_are_stored_in_another_order_have_the_shape_of_their_values(tmp_path: Path) -> None:
    stored = np.arange(48, dtype=np.float32).reshape(2, 2, 3, 4)
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3, 4), permutation=[2, 0, 1])
    flat = pa.FixedSizeListArray.from_arrays(pa.array(stored.reshape(-1)), 24)
    save(tmp_path / "a.arrow", pa.table({"x": pa.ExtensionArray.from_storage(kind, flat)}))
    seen = look_at("arrow", [str(tmp_path / "a.arrow")], InputFacts())
    assert seen.columns["x"].shape == (ROWS, 4, 2, 3)
    (block,) = read(tmp_path, ["a.arrow"], Wanted(dtypes={"x": "float32"}))
    np.testing.assert_array_equal(block.columns["x"], stored.transpose(0, 3, 1, 2))


def test_tensors_are_carried_as_lists_in_the_order_of_their_axes(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.int32(), (2, 3), permutation=[1, 0])
    flat = pa.array([[1, 2, 3, 4, 5, 6], None, [7, 8, 9, 0, 1, 2]], pa.list_(pa.int32(), 6))
    save(tmp_path / "a.arrow", pa.table({"t": pa.ExtensionArray.from_storage(kind, flat), "x": [1.0, 2.0, 3.0]}))
    (block,) = read(tmp_path, ["a.arrow"], Wanted(dtypes={"x": None}, keys=("t",)))
    assert block.key("t") == [[[1, 4], [2, 5], [3, 6]], None, [[7, 0], [8, 1], [9, 2]]]
    assert type_name(kind) == "list<list<int32>[2]>[3]"


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)])
def test_tensors_of_no_axes_or_without_values_are_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.zeros((2, *shape), np.float32)
    flat = pa.FixedSizeListArray.from_buffers(
        pa.list_(pa.float32(), values[0].size), 2, [None], children=[pa.array(values.reshape(-1))]
    )
    kind = pa.fixed_shape_tensor(pa.float32(), shape)
    save(tmp_path / "a.arrow", pa.table({"x": pa.ExtensionArray.from_storage(kind, flat)}))
    (block,) = read(tmp_path, ["a.arrow"], Wanted(dtypes={"x": "float32"}))
    np.testing.assert_array_equal(block.columns["x"], values)


def test_tensors_inside_of_lists_and_structs_are_read_and_carried(tmp_path: Path) -> None:
    stored = np.arange(24, dtype=np.float32)
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3), permutation=[1, 0])
    tensors = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(pa.array(stored), 6))
    columns = {
        "x": pa.ListArray.from_arrays(pa.array([0, 2, 4]), tensors),
        "lists": pa.ListArray.from_arrays(pa.array([0, 1, 1]), tensors, mask=pa.array([False, True])),
        "struct": pa.StructArray.from_arrays([tensors.slice(2)], ["t"], mask=pa.array([True, False])),
    }
    save(tmp_path / "a.arrow", pa.table(columns))
    (block,) = read(tmp_path, ["a.arrow"], Wanted(dtypes={"x": "float32"}, keys=("lists", "struct")))
    values = stored.reshape(2, 2, 2, 3).transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(block.columns["x"], values)
    assert block.key("lists") == [[values[0, 0].tolist()], None]
    assert block.key("struct") == [None, {"t": values[1, 1].tolist()}]


@pytest.mark.parametrize("missing", [{}, {"x": 0.0}])
def test_a_tensor_that_is_null_fails_its_row_alone(tmp_path: Path, missing: dict[str, float]) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), (1, 2))
    flat = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    save(tmp_path / "a.arrow", pa.table({"x": pa.ExtensionArray.from_storage(kind, flat)}))
    (block,) = read(tmp_path, ["a.arrow"], Wanted(dtypes={"x": "float32"}, missing=missing))
    assert np.asarray(block.columns["x"]).tolist() == [[[1, 2]], [[3, 4]]]
    assert [(row.row, row.message) for row in block.failed] == [(1, '"x" is empty')]


@pytest.mark.parametrize("kind", FILES)
def test_fixed_size_lists_are_not_copied(tmp_path: Path, kind: str) -> None:
    save(tmp_path / f"a.{kind}", table(), ROW_COUNT)
    (block,) = read(tmp_path, [f"a.{kind}"], Wanted(dtypes={"matrix": None}), size=100)
    matrix = block.columns["matrix"]
    assert isinstance(matrix, np.ndarray)
    assert matrix.base is not None
    assert not matrix.flags.owndata


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are Unicode")
@pytest.mark.parametrize("kind", FILES)
def test_a_file_whose_name_is_not_utf8_is_read(tmp_path: Path, kind: str) -> None:
    save(tmp_path / f"a.{kind}", table())
    (tmp_path / f"a.{kind}").rename(tmp_path / f"\udcff.{kind}")
    (block,) = read(tmp_path, [f"\udcff.{kind}"], Wanted(dtypes={"number": None}, keys=("path",)), size=ROW_COUNT)
    assert set(block.columns["path"]) == {f"\udcff.{kind}"}


@pytest.mark.parametrize("kind", FILES)
def test_keys_of_many_rows_are_no_python_values(tmp_path: Path, kind: str) -> None:
    """Making and writing these one by one kept the interpreter from the session: a tenth of a job's time."""
    save(tmp_path / f"a.{kind}", table(), ROW_COUNT)
    (block,) = read(tmp_path, [f"a.{kind}"], Wanted(dtypes={"number": None}, keys=("path", "row")), size=ROW_COUNT)
    assert [np.asarray(block.columns[key]).strides for key in ("path", "row")] == [(0,), (8,)]
    assert all(isinstance(block.columns[key], np.ndarray) for key in ("path", "row"))


@pytest.mark.parametrize("kind", FILES)
def test_gaps_fail_their_rows_or_become_what_they_stand_for(tmp_path: Path, kind: str) -> None:
    gaps = pa.table({"x": pa.array([1.0, None, 3.0]), "v": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, None]])})
    save(tmp_path / f"a.{kind}", gaps)
    (block,) = read(tmp_path, [f"a.{kind}"], Wanted(dtypes={"x": None, "v": None}, keys=("row",)))
    assert list(block.rows) == [0]
    assert [(row.row, row.code, row.message) for row in block.failed] == [
        (1, "missing-value", '"x" is empty'),
        (2, "missing-value", '"v" has an empty element'),
    ]
    assert list(block.columns["row"]) == [0]
    wanted = Wanted(dtypes={"x": None, "v": None}, missing={"x": 9.0, "v": -1.0})
    (block,) = read(tmp_path, [f"a.{kind}"], wanted)
    assert not block.failed
    assert [list(map(float, block.columns["x"])), np.asarray(block.columns["v"])[2].tolist()] == [[1, 9, 3], [5, -1]]


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_no_tables_are_problems(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"bad.{kind}").write_bytes(b"PAR1 or something else" * 9)
    save(tmp_path / f"a.{kind}", table())
    cut = (tmp_path / f"a.{kind}").read_bytes()
    (tmp_path / f"cut.{kind}").write_bytes(cut[: len(cut) // 2])
    for names in ([f"bad.{kind}"], [f"cut.{kind}"]):
        found = look_at(kind.removesuffix("s"), [str(tmp_path / name) for name in names], InputFacts(format=kind))
        assert found.problem is not None, names
        assert found.problem.kind == "unreadable"


def test_rows_of_a_megabyte_are_not_decoded_by_the_thousand(tmp_path: Path) -> None:
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(32 * 2**18, dtype=np.float32)), 2**18)
    save(tmp_path / "a.parquet", pa.table({"x": wide}), rows_a_group=32)
    counted = pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counted)
    try:
        blocks = read(tmp_path, ["a.parquet"], Wanted(dtypes={"x": None}), size=1)
        assert [float(np.asarray(block.columns["x"])[0, 0]) for block in blocks] == [row * 2.0**18 for row in range(32)]
        del blocks
        with SOURCES["parquet"].open_source(
            [str(tmp_path / "a.parquet")], str(tmp_path), Wanted(dtypes={"x": None})
        ) as source:
            before = counted.bytes_allocated()
            assert max(counted.bytes_allocated() - before for _ in source.blocks(0, repeat(1))) < 16 * 2**20
    finally:
        pa.set_memory_pool(pa.system_memory_pool())


def test_a_stream_that_was_cut_between_its_record_batches_is_a_problem(tmp_path: Path) -> None:
    save(tmp_path / "a.arrows", table())
    whole = (tmp_path / "a.arrows").read_bytes()
    (tmp_path / "a.arrows").write_bytes(whole[:-8])
    found = look_at("arrow", [str(tmp_path / "a.arrows")], InputFacts(format="arrow"))
    assert found.problem is not None
    assert "nor a whole Arrow IPC stream" in found.problem.detail


def write(kind: str, blocks: Sequence[dict[str, Column]], shapes: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        sink = SINKS[kind].open_sink(file, shapes, json.dumps({"plan": "abc"}), {})
        for block in blocks:
            sink.write(block)
        sink.close()


COLUMNS: dict[str, Column] = {
    "key": ["a", "b", "c"],
    "scores": np.arange(12, dtype=np.float32).reshape(3, 4),
    "cube": np.arange(12, dtype=np.int16).reshape(3, 2, 2),
    "name": np.array(["x", "ü", ""], dtype=object),
    "flag": np.array([True, False, True]),
    "free": [np.zeros(0, np.float32), np.ones(2, np.float32), np.ones(1, np.float32)],
    "map": [{"a": 1.0}, {"b": 2.0}, {}],
}
SHAPES = {"key": None, "scores": (4,), "cube": (2, None), "name": (), "flag": (), "free": (None,), "map": None}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_back_with_its_types_and_origin(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"part.{kind}"
    write(kind, [COLUMNS, COLUMNS], SHAPES, path)
    found = parquet.read_table(path) if kind == "parquet" else pa.ipc.open_file(path).read_all()
    assert json.loads(found.schema.metadata[ORIGIN]) == {"plan": "abc"}
    assert found.schema.field("scores").type == pa.list_(pa.float32(), 4)
    assert pa.types.is_list(found.schema.field("cube").type.value_type)
    assert found.column("cube").to_pylist() == COLUMNS["cube"].tolist() * 2  # type: ignore[union-attr]  # an array
    assert found.column("free").to_pylist() == [[], [1, 1], [1]] * 2
    assert found.column("map").to_pylist() == [[("a", 1.0)], [("b", 2.0)], []] * 2
    assert found.column("name").to_pylist() == ["x", "ü", ""] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rows_give_equal_bytes_however_they_come(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
    for name, size in (("a", 20_000), ("b", 777), ("c", 1)):
        blocks: list[dict[str, Column]] = [{"y": rows[i : i + size]} for i in range(0, 20_000 if size > 1 else 0, size)]
        write(kind, blocks or [{"y": rows}], {"y": (64,)}, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("kind", [*KINDS, "npy"])
def test_rows_of_another_shape_than_the_first_are_an_error(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ValueError, match=r"do not fit|differ in shape"):
        write(kind, [{"y": np.zeros((2, 3))}, {"y": np.zeros((2, 4))}], {"y": (3,)}, tmp_path / "x")


@pytest.mark.parametrize("values", [np.arange(12, dtype=np.int8).reshape(3, 4), np.array(["a", "longer"], object)])
def test_npy_is_written_as_it_comes(tmp_path: Path, values: np.ndarray) -> None:
    write("npy", [{"y": values[:1]}, {"y": values[1:]}], {"y": None}, tmp_path / "x.npy")
    assert np.load(tmp_path / "x.npy").tolist() == values.tolist()


def test_keys_in_nanoseconds_may_be_missing_and_are_read_piece_by_piece(tmp_path: Path) -> None:
    stamps = pa.array([1, None, 3_000_000_000_000_000_000], pa.int64()).view(pa.timestamp("ns", "Europe/Berlin"))
    parquet.write_table(pa.table({"x": pa.array([1.0, 2.0, 3.0], pa.float32()), "t": stamps}), tmp_path / "a.parquet")
    blocks = read(tmp_path, ["a.parquet"], Wanted(dtypes={"x": None}, keys=("t",)), size=2)
    texts = [None if key is None else str(key) for block in blocks for key in block.columns["t"]]
    assert texts == ["1970-01-01 01:00:00.000000001+01:00", None, "2065-01-24 06:20:00+01:00"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.timestamp("ns")),
        pa.struct([("a", pa.time64("ns"))]),
        pa.list_(pa.dictionary(pa.int32(), pa.timestamp("ns"))),
    ],
)
def test_nanoseconds_inside_of_lists_are_no_keys(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"x": pa.array([1.0], pa.float32()), "t": pa.nulls(1, kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(TableError, match="no nanoseconds inside of lists"):
        read(tmp_path, ["a.parquet"], Wanted(dtypes={"x": None}, keys=("t",)), size=1)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_a_whole_number_that_nan_among_others_would_round_fails_its_row(tmp_path: Path, kind: pa.DataType) -> None:
    numbers = pa.array([2**53, None, 2**53 + 1, 2**53 + 2], kind)
    parquet.write_table(pa.table({"x": numbers}), tmp_path / "a.parquet")
    (block,) = read(tmp_path, ["a.parquet"], Wanted(dtypes={"x": "float64"}, missing={"x": "nan"}))
    assert np.array_equal(np.asarray(block.columns["x"]), [2.0**53, np.nan, 2.0**53 + 2], equal_nan=True)
    (failed,) = block.failed
    assert (failed.row, failed.code) == (2, "not-a-number")
    assert failed.message.startswith('"x" is 9007199254740993, which float64 would round')
