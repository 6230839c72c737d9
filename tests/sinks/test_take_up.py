"""A part that was closed early and taken up has the bytes of one that was written at once, in every format."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.sinks import tables
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.protocol import RowShape
from ortdeploy.tensors.columns import Column, pick

SHAPES: Mapping[str, RowShape] = {
    "row": None, "path": None, "name": None, "y": (3,), "open": None, "flag": None, "texts": None, "map": None, "boxes": None,
    "picture": (40,), "half": (),
}  # fmt: skip
FLAT = ("row", "path", "name", "y", "flag", "half")


def rows(first: int, count: int) -> dict[str, Column]:
    """Return some rows of every kind of column that jobs write."""
    numbers = range(first, first + count)
    return {
        "row": np.arange(first, first + count),
        "path": np.broadcast_to(np.array("in/ä.png", dtype=object), (count,)),
        "name": np.array([f"n{row}," * (row % 4) for row in numbers], dtype=object),
        "y": np.array([[row, np.nan, -0.0] for row in numbers], dtype=np.float32),
        "open": np.array([[row, row] for row in numbers], dtype=np.int64),
        "flag": np.array([row % 3 == 0 for row in numbers]),
        "texts": ["none" if row == 0 else None if row % 3 == 0 else f'"{row}"\r\n' for row in numbers],
        "map": [{"a": float(row), "b": 0.5} for row in numbers],
        "boxes": [np.arange(row % 3 * 4, dtype=np.float32).reshape(-1, 4) for row in numbers],
        "picture": np.array([[row % 256] * 40 for row in numbers], dtype=np.uint8),
        "half": np.array([row / 3 for row in numbers], dtype=np.float16),
    }


COLUMNS = {
    "arrow": tuple(SHAPES), "csv": (*FLAT, "texts"), "jsonl": tuple(SHAPES), "npy": ("y",), "npz": FLAT, "parquet": tuple(SHAPES),
}  # fmt: skip


def write(kind: str, shapes: Mapping[str, RowShape], blocks: Sequence[Mapping[str, Any]], early: Path | None) -> bytes:
    file = io.BytesIO()
    sink = SINKS[kind].open_sink(file, shapes, '{"plan": "x"}', {})
    if early is not None:
        sink.take_up(early)
    for block in blocks:
        sink.write({name: block[name] for name in shapes})
    assert sink.is_exact
    sink.close()
    return file.getvalue()


def interrupted(
    kind: str, shapes: Mapping[str, RowShape], runs: Sequence[Sequence[Mapping[str, Any]]], folder: Path
) -> bytes:
    early = None
    for blocks in runs:
        written = write(kind, shapes, blocks, early)
        early = folder / "early"
        early.write_bytes(written)
    return written


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(12, 30), deadline=None)
@given(
    kind=st.sampled_from(sorted(SINKS)),
    runs=st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=4),
    group_bytes=st.sampled_from([1, 1000, 4000, 1 << 22]),
)
@example(kind="parquet", runs=[[1, 9], [9], [], [9, 9]], group_bytes=4000)
@example(kind="arrow", runs=[[9], [9, 9, 9]], group_bytes=1000)
def test_every_format_gives_the_bytes_of_a_part_that_was_written_at_once(
    tmp_path_factory: pytest.TempPathFactory, kind: str, runs: list[list[int]], group_bytes: int
) -> None:
    runs[0] = [1, *runs[0]]
    shapes = {name: SHAPES[name] for name in COLUMNS[kind]}
    first = 0
    blocks: list[list[dict[str, Column]]] = []
    for sizes in runs:
        blocks.append([])
        for size in sizes:
            blocks[-1].append(rows(first, size))
            first += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "GROUP_BYTES", group_bytes)
        whole = write(kind, shapes, [block for run in blocks for block in run], None)
        assert interrupted(kind, shapes, blocks, tmp_path_factory.mktemp("early")) == whole


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_text_of_other_lengths_is_as_wide_as_the_longest(tmp_path: Path, kind: str) -> None:
    blocks = [{"name": np.array([text], dtype=object)} for text in ("a", "", "longer", "b")]
    whole = write(kind, {"name": None}, blocks, None)
    assert interrupted(kind, {"name": None}, [[block] for block in blocks], tmp_path) == whole


def test_an_archive_whose_numbers_may_become_text_later_is_not_exact() -> None:
    sink = SINKS["npz"].open_sink(io.BytesIO(), {"key": None}, "{}", {})
    sink.write({"key": [1, 2]})
    assert sink.is_exact
    sink.write({"key": [0.5]})
    assert not sink.is_exact


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_where_a_table_is_cut_does_not_depend_on_the_rows_of_its_first_block(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "GROUP_BYTES", 5000)
    written = {
        write(kind, SHAPES, [rows(0, first), rows(first, 99 - first), rows(99, 1)], None) for first in (1, 2, 9, 98)
    }
    assert len(written) == 1


@pytest.mark.parametrize("kind", [kind for kind, sink in SINKS.items() if kind in {"arrow", "parquet"}])
@settings(max_examples=effort(8, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(2, 60), left_out=st.sets(st.integers(0, 59), min_size=1))
@example(count=60, left_out=set(range(0, 60, 7)))
@example(count=4, left_out={3})
@example(count=4, left_out={0, 1, 2})
def test_a_part_that_a_retry_has_merged_has_the_bytes_of_one_that_was_written_at_once(
    tmp_path: Path, kind: str, count: int, left_out: set[int]
) -> None:
    shapes = {name: SHAPES[name] for name in COLUMNS[kind]}
    whole = rows(0, count)
    again = [row for row in range(count) if row in left_out]
    kept = [row for row in range(count) if row not in left_out]
    if not (again and kept):
        return
    for name, chosen in (("old", kept), ("new", again)):
        picked = {column: pick(values, chosen) for column, values in whole.items()}
        (tmp_path / name).write_bytes(write(kind, shapes, [picked], None))
    merged = io.BytesIO()
    order = np.argsort([*kept, *again]).tolist()
    SINKS[kind].merge([tmp_path / "old", tmp_path / "new"], order, merged)
    assert merged.getvalue() == write(kind, shapes, [whole], None)
