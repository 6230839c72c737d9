"""Record batches that can only be read whole, compressed or with dictionaries, are held one at a time, as forecast."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.files.memory_budget import PROCESS
from ortdeploy.sources.arrow import PIECE_BYTES, open_source, probe
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array

ROWS, BATCHES = 3 * 1024 * 1024, 3
"""A batch takes 12 MiB of float32."""
SMALLER = 8
"""Where rows are looked at, all is smaller by this."""


def numbers(rows: int) -> list[Array]:
    """The rows of each batch, int32 [rows]."""
    generator = np.random.default_rng(0)
    return [generator.integers(0, 100, rows).astype(np.int32) for _ in range(BATCHES)]


def write(path: Path, kind: str, rows: int = ROWS) -> None:
    if kind == "dictionary":
        values = pa.array(np.arange(100, dtype=np.float32))
        columns = [pa.DictionaryArray.from_arrays(pa.array(one), values) for one in numbers(rows)]
    else:
        columns = [pa.array(one.astype(np.float32)) for one in numbers(rows)]
    batches = [pa.record_batch([column], names=["x"]) for column in columns]
    options = pa.ipc.IpcWriteOptions(compression=None if kind == "dictionary" else kind)
    make = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
    with make(str(path), batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


@pytest.mark.quick("zstd-a.arrow", "lz4-a.arrows", "dictionary-a.arrow")
@pytest.mark.parametrize("name", ["a.arrow", "a.arrows"])
@pytest.mark.parametrize("kind", ["zstd", "lz4", "dictionary"])
def test_one_batch_is_held_at_a_time_and_its_rows_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    piece, many = PIECE_BYTES // SMALLER, 100_000 // SMALLER
    monkeypatch.setattr("ortdeploy.sources.arrow.PIECE_BYTES", piece)
    path = tmp_path / name
    write(path, kind, ROWS // SMALLER)
    held = probe([str(path)], InputFacts()).held_bytes
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    wanted = np.concatenate(numbers(ROWS // SMALLER)).astype(np.float32)
    kept: list[object] = []
    with open_source([str(path)], str(tmp_path), Wanted(dtypes={"x": "float32"})) as source:
        for block in source.blocks(0, iter(lambda: many, None)):
            kept = [*kept[-2:], block]  # as those that are in flight
            most = max(most, pa.total_allocated_bytes() - before)
            assert np.array_equal(block.columns["x"], wanted[rows : rows + block.count])
            rows += block.count
    assert rows == ROWS // SMALLER * BATCHES
    assert held >= 4 * ROWS // SMALLER
    in_flight = 4 * 4 * many
    assert most <= held + 2 * piece + in_flight


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zstd", "dictionary"])
def test_a_batch_for_which_there_is_no_room_is_not_read(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a.arrow", kind)
    tight = Wanted(dtypes={"x": "float32"}, memory_limit=PROCESS + 8 * 1024 * 1024)
    before = pa.total_allocated_bytes()
    with (
        open_source([str(tmp_path / "a.arrow")], str(tmp_path), tight) as source,
        pytest.raises(OrtdeployError, match=r"the largest record batch of .*a\.arrow takes 1\d(\.\d)? MiB of memory"),
    ):
        next(iter(source.blocks(0, iter([10]))))
    assert pa.total_allocated_bytes() - before < 1024 * 1024


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_rows_of_all_types_are_copied_out_of_large_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    monkeypatch.setattr("ortdeploy.sources.arrow.PIECE_BYTES", 256)
    count = 50
    columns = {
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(count * 4, dtype=np.float32)), 4),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(count * 6.0).reshape(count, 2, 3)),
        "text": pa.array([f"row {row}" for row in range(count)]).dictionary_encode(),
        "lists": pa.array([[row, row] for row in range(count)]),
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), batch.schema, options=options) as writer:
        writer.write_batch(batch)
    wanted = Wanted(dtypes=dict.fromkeys(columns))
    with open_source([str(tmp_path / "a.arrow")], str(tmp_path), wanted) as source:
        blocks = list(source.blocks(3, iter(lambda: 7, None)))
    for name, whole in {
        "fixed": np.arange(count * 4).reshape(count, 4),
        "tensor": np.arange(count * 6.0).reshape(count, 2, 3),
        "text": [f"row {row}" for row in range(count)],
        "lists": [[row, row] for row in range(count)],
    }.items():
        found = [np.asarray(value).tolist() for block in blocks for value in block.columns[name]]
        assert found == np.asarray(whole).tolist()[3:]
