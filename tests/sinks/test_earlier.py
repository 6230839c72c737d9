"""New parts have the units of earlier ones, which may be carried away at any moment."""

import io
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.earlier import EarlierParts
from ortdeploy.tensors.nanoseconds import Nanoseconds


def part_of(earlier: EarlierParts) -> pa.DataType:
    """The type of a column of nanoseconds in a new part."""
    file = io.BytesIO()
    sink = SINKS["parquet"].open_sink(file, {"when": None}, "{}", earlier)
    sink.write({"when": [Nanoseconds(3000, pa.duration("ns"), timedelta(microseconds=3))]})
    sink.close()
    return parquet.read_schema(io.BytesIO(file.getvalue())).field("when").type


@pytest.fixture
def microseconds(tmp_path: Path) -> Path:
    path = tmp_path / "part-0.parquet"
    parquet.write_table(pa.table({"when": pa.array([1], pa.duration("us"))}), path)
    return path


def test_the_first_part_that_is_there_says_the_unit(tmp_path: Path, microseconds: Path) -> None:
    assert part_of(EarlierParts([tmp_path / "gone.parquet", microseconds])) == pa.duration("us")
    assert part_of(EarlierParts([tmp_path / "gone.parquet"])) == pa.duration("ns")


def test_a_part_that_is_carried_away_between_two_new_ones_still_says_the_unit(microseconds: Path) -> None:
    earlier = EarlierParts([microseconds])
    assert part_of(earlier) == pa.duration("us")
    microseconds.unlink()
    assert part_of(earlier) == pa.duration("us")


def test_a_part_that_was_fetched_to_be_read_is_not_kept(microseconds: Path) -> None:
    def fetched() -> Iterator[Path]:
        try:
            yield microseconds
        finally:
            microseconds.unlink()

    earlier = EarlierParts(fetched())
    assert part_of(earlier) == pa.duration("us")
    assert not microseconds.exists()
    assert part_of(earlier) == pa.duration("us")
