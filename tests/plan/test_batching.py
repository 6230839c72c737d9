"""What follows from a batch size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ortdeploy.plan.batching import Batching

batchings = st.builds(
    Batching,
    size=st.none() | st.integers(1, 100),
    auto=st.just(value=False),
    fixed=st.none(),
    last=st.sampled_from(["short", "pad", "drop"]),
    batches_per_read=st.integers(1, 8),
    rows_per_part=st.integers(1, 1000),
)


def batching(size: int | None = 8, last: str = "short", fixed: int | None = None, rows_per_part: int = 100) -> Batching:
    return Batching(size=size, auto=False, fixed=fixed, last=last, batches_per_read=2, rows_per_part=rows_per_part)


@given(batchings, st.integers(1, 1000))
def test_a_part_holds_whole_reads_and_no_more_than_are_needed(one: Batching, rows_per_part: int) -> None:
    whole = replace(one, rows_per_part=rows_per_part)
    assert whole.rows_per_part % whole.read_size == 0
    assert rows_per_part <= whole.rows_per_part < rows_per_part + whole.read_size
    assert replace(whole) == whole


@given(batchings, st.integers(1, 1024))
def test_what_follows_from_the_size_changes_with_it(one: Batching, size: int) -> None:
    other = one.resized(size)
    assert (other.size, other.run_size) == (size, size)
    assert other.read_size == size * one.batches_per_read
    assert other.rows_per_part % other.read_size == 0
    assert other.pad_to == (size if one.last == "pad" else None)


@given(batchings, st.integers(0, 1000))
def test_every_row_is_in_a_whole_batch_a_short_one_or_dropped(one: Batching, rows: int) -> None:
    run, rest = one.rows_run(rows), one.short_batch(rows)
    assert run == rows or one.last == "drop"
    assert 0 <= rest < one.run_size
    if one.last != "pad":
        assert (run - rest) % one.run_size == 0


@pytest.mark.parametrize(
    ("one", "run_size", "read_size", "pad_to"),
    [
        (batching(), 8, 16, None),
        (batching(last="pad"), 8, 16, 8),
        (batching(last="drop"), 8, 16, None),
        (batching(fixed=8), 8, 16, 8),
        (batching(size=None), 1, 2, None),
        (batching(size=None, last="pad"), 1, 2, None),
    ],
)
def test_short_batches_are_filled_up_where_they_are_padded_or_the_graph_takes_one_size(
    one: Batching, run_size: int, read_size: int, pad_to: int | None
) -> None:
    assert (one.run_size, one.read_size, one.pad_to) == (run_size, read_size, pad_to)


def test_known_numbers() -> None:
    assert batching().rows_per_part == 112
    assert batching(last="drop").rows_run(19) == 16
    assert batching(last="pad").rows_run(19) == 19
    assert batching().short_batch(19) == 3
    assert batching(last="pad").short_batch(19) == 0
