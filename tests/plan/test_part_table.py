"""The part table of a plan, and which parts a shard runs."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.plan.part_table import PartTable, Shard


@given(st.integers(0, 50), st.integers(0, 300), st.integers(0, 500), st.integers(1, 70), st.integers(1, 9))
def test_every_row_is_in_one_part_and_every_part_in_one_shard(
    first_number: int, first_row: int, rows: int, rows_per_part: int, shards: int
) -> None:
    table = PartTable(first_number=first_number, first_row=first_row, end=first_row + rows, rows_per_part=rows_per_part)
    parts = list(table)
    assert len(parts) == len(table)
    assert [row for part in parts for row in part.rows] == list(range(first_row, first_row + rows))
    assert [part.number for part in parts] == list(range(first_number, first_number + len(parts)))
    assert all(len(part.rows) == rows_per_part for part in parts[:-1])
    assert all(one.end == other.start for one, other in pairwise(parts))
    taken = [[part.number for part in parts if Shard(index=i, count=shards).takes(part.number)] for i in range(shards)]
    assert sorted(number for one in taken for number in one) == [part.number for part in parts]
