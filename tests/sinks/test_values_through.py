"""Values of every element type from every source through every sink, at the borders of their range, read back by others."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from pyarrow import parquet
from support.effort import effort

from ortdeploy.files.csv_text import read_cells
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.lost import why_lost
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.types import TensorType

FLOATS = ("float16", "float32", "float64")
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def values(dtype: str) -> list[Any]:
    if dtype == "bool":
        return [True, False]
    if dtype == "string":
        return ["", "ä", "\0a", 'a"b,c\r\n', "0.40", "None"]
    if dtype in WHOLE:
        whole = np.iinfo(dtype)
        return [int(whole.min), int(whole.max), 0, 1]
    limits = np.finfo(dtype)
    special = [limits.max, limits.min, limits.tiny, limits.smallest_subnormal, 0.1, -0.0]
    return [float(np.dtype(dtype).type(one)) for one in special]


def write_npy(path: Path, array: np.ndarray) -> None:
    np.save(path, array.astype(str) if array.dtype == object else array)


def write_npz(path: Path, array: np.ndarray) -> None:
    np.savez(path, k=array.astype(str) if array.dtype == object else array)


def write_parquet(path: Path, array: np.ndarray) -> None:
    parquet.write_table(pa.table({"k": pa.array(array)}), path)


def write_arrow(path: Path, array: np.ndarray) -> None:
    table = pa.table({"k": pa.array(array)})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def write_jsonl(path: Path, array: np.ndarray) -> None:
    path.write_text("".join(json.dumps({"k": one}) + "\n" for one in array.tolist()))


def write_pb(path: Path, array: np.ndarray) -> None:
    path.write_bytes(numpy_helper.from_array(array).SerializeToString())


WRITERS = {
    "npy": (write_npy, "array"), "npz": (write_npz, "k"), "parquet": (write_parquet, "k"), "arrow": (write_arrow, "k"),
    "jsonl": (write_jsonl, "k"), "pb": (write_pb, "array"), "raw": (lambda path, array: array.tofile(path), "array"),
}  # fmt: skip


def read(form: str, path: Path, dtype: str) -> Column:
    """Return a column that is carried, as a source reads it."""
    name = WRITERS[form][1]
    row_type = TensorType(dtype, ()) if form == "raw" else None
    wanted = Wanted(dtypes={}, keys=(name,), row_type=row_type)
    with open_input(form, [str(path)], str(path.parent), wanted) as source:
        block = next(iter(source.blocks(0, iter([100]))))
    assert not block.failed
    return block.key(name)


def through(form: str, column: Column) -> list[Any]:
    """Return what another library reads of a column that a sink has written."""
    file = io.BytesIO()
    sink = SINKS[form].open_sink(file, {"k": None}, "{}", {})
    sink.write({"k": column})
    sink.close()
    content = io.BytesIO(file.getvalue())
    if form in {"npz", "npy"}:
        loaded = np.load(content, allow_pickle=False)
        return list((loaded["k"] if form == "npz" else loaded).tolist())
    if form == "parquet":
        return list(parquet.read_table(content)["k"].to_pylist())
    if form == "arrow":
        return list(pa.ipc.open_file(content).read_all()["k"].to_pylist())
    text = content.getvalue().decode()
    if form == "jsonl":
        return [json.loads(line)["k"] for line in text.split("\n") if line]
    return [cells[0] for cells in list(read_cells(io.StringIO(text, newline="")))[1:]]


def is_same(have: Any, want: Any, form: str, dtype: str) -> bool:
    if form == "csv":
        have = (
            {"True": True, "False": False}[have]
            if dtype == "bool"
            else have
            if dtype == "string"
            else float(have)
            if dtype in FLOATS
            else int(have)
        )
    if dtype in FLOATS:  # the sign of zero counts, too
        return bool(np.dtype(dtype).type(have).tobytes() == np.dtype(dtype).type(want).tobytes())
    return bool(type(have) is type(want) and have == want)


@pytest.mark.quick("npz-jsonl", "parquet-arrow", "arrow-npz", "csv-parquet", "jsonl-raw", "npy-pb")
@pytest.mark.parametrize("source", WRITERS)
@pytest.mark.parametrize("sink", SINKS)
def test_every_element_type_comes_through(tmp_path: Path, source: str, sink: str) -> None:
    for dtype in ("bool", "string", *WHOLE, *FLOATS):
        if dtype == "string" and source in {"pb", "raw"}:
            continue
        wanted = values(dtype)
        path = tmp_path / f"{dtype}.{source}"
        WRITERS[source][0](path, np.array(wanted, object if dtype == "string" else dtype))
        column = read(source, path, dtype)
        if dtype == "uint64" and source == "jsonl" and sink in {"parquet", "arrow"}:
            continue  # there, the type of a whole column is settled before
        have = through(sink, column)
        assert len(have) == len(wanted)
        for one, want in zip(have, wanted, strict=True):
            assert is_same(one, want, sink, dtype), (source, dtype, sink, one, want)


SCALARS = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.text(max_size=3)


def is_one_type(column: Sequence[Any]) -> bool:
    """Whether an array holds all values of a column as they are."""
    kinds = {type(one) for one in column}
    if kinds == {int}:
        return any(least <= min(column) and max(column) < most for least, most in ((-(2**63), 2**63), (0, 2**64)))
    return len(kinds) == 1 or (
        kinds == {int, float} and all(int(float(one)) == one for one in column if type(one) is int)
    )


@settings(max_examples=effort(30, 1000))
@given(st.lists(SCALARS, min_size=1, max_size=4))
def test_a_column_of_python_s_values_is_written_as_it_is_or_refused(column: list[Any]) -> None:
    for form in ("npz", "npy", "jsonl"):
        if why_lost(SINKS[form], column) is not None:
            continue  # such a row fails before
        if form != "jsonl" and not is_one_type(column):
            with pytest.raises(ValueError, match=r"values of k|rows of k"):
                through(form, column)
            continue
        have = through(form, column)
        infinite = [None if form == "jsonl" and isinstance(one, float) and np.isinf(one) else one for one in column]
        assert have == infinite
        assert {type(one) for one in have} <= {type(one) for one in infinite} | {float}
