"""Blocks are whole batches of a part, and grow while they are quick and small."""

from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.jobs import changed_job, plan_for

from ortdeploy.feeds.in_flight import block_bytes
from ortdeploy.plan.steps import RunJob
from ortdeploy.streaming.block_sizes import MOST_BATCHES, TARGET_SECONDS, BlockSizes, part_border
from ortdeploy.streaming.crashed_runs import CrashedRun, decode_crashed_runs, encode_crashed_runs

BATCH = 4


@pytest.fixture(name="job")
def one_job(tmp_path: Path) -> RunJob:
    (job,) = (
        one for one in plan_for(tmp_path, 100_000, size=BATCH, rows_per_part=40_000).steps if isinstance(one, RunJob)
    )
    return job


def test_blocks_end_where_parts_end(job: RunJob) -> None:
    sizes = BlockSizes(job, 39_996, 1)
    blocks = iter(sizes)
    assert next(blocks) == BATCH
    sizes.learn(BATCH, 1e-6, 1)
    assert list(islice(blocks, 2)) == [4 * BATCH, 4 * BATCH]


def test_a_part_that_begins_within_a_batch_of_an_older_one_ends_with_it(job: RunJob) -> None:
    assert [part_border(job, row) for row in (0, 39_996, 40_000)] == [40_000, 40_000, 80_000]
    later = changed_job(job, input={"first_row": 8})
    assert [part_border(later, row) for row in (8, 40_004, 40_008)] == [40_008, 40_008, 80_008]
    upgraded = changed_job(later, output={"upgraded_at": 20})
    assert part_border(upgraded, 20) == 40_020
    assert part_border(upgraded, 22) == 40_022, "the rest of a batch was a part"


def learned(job: RunJob, seconds: float, size_bytes: int, *, times: int = 9, sessions: int = 1) -> int:
    """Return the batches of a block after blocks of one batch that took this long and were this large."""
    sizes = BlockSizes(job, 0, sessions)
    for _ in range(times):
        sizes.learn(BATCH, seconds, size_bytes)
    return next(iter(sizes)) // BATCH


def test_blocks_grow_to_the_time_that_they_may_take(job: RunJob) -> None:
    assert learned(job, TARGET_SECONDS / 8.5, 1) == 8
    assert learned(job, TARGET_SECONDS * 2, 1) == 1
    assert learned(job, 0.0, 0) == MOST_BATCHES == 256
    assert [learned(job, 0.0, 0, times=times) for times in (0, 1, 2)] == [1, 4, 16]


@pytest.mark.parametrize("sessions", [1, 4])
def test_blocks_grow_to_the_bytes_that_they_may_have(job: RunJob, sessions: int) -> None:
    assert learned(job, 1e-6, block_bytes(sessions) // 8, sessions=sessions) == 8
    assert learned(job, 1e-6, block_bytes(sessions) * 2, sessions=sessions) == 1


def test_what_is_learned_of_more_batches_is_of_each(job: RunJob) -> None:
    sizes = BlockSizes(job, 0, 1)
    for _ in range(9):
        sizes.learn(4 * BATCH, TARGET_SECONDS / 2, 1)
    assert next(iter(sizes)) == 8 * BATCH


def test_nothing_is_learned_of_no_rows_or_where_rows_are_sorted_in_blocks(job: RunJob) -> None:
    sizes = BlockSizes(job, 0, 1)
    sizes.learn(0, 1e-6, 1)
    assert next(iter(sizes)) == BATCH
    by_row = replace(job, adapters=replace(job.adapters, column="who"))
    assert learned(by_row, 1e-6, 1) == 1


@pytest.mark.parametrize(
    ("crash", "rows", "stops"),
    [
        (None, {1, 2}, True), (None, {1, 2, 3}, True), (None, {1}, False), (None, {2, 3}, False),
        ("died", {1, 2}, True), ("died", {2, 3}, True), ("died", {3, 4}, False), ("died", {1}, False),
    ],
)  # fmt: skip
def test_rows_that_ended_a_process_do_not_run_together_again(crash: str | None, rows: set[int], *, stops: bool) -> None:
    """Rows that crashed run one by one; those that hung may run without each other."""
    assert CrashedRun(rows=frozenset({1, 2}), crash=crash).stops(rows) is stops
    assert CrashedRun(rows=frozenset({1}), crash=crash).stops({1})


def test_runs_that_ended_a_process_are_told_to_the_next_one() -> None:
    runs = {"j": (CrashedRun(rows=frozenset({2, 1}), crash="was killed"), CrashedRun(rows=frozenset({5}))), "k": ()}
    assert encode_crashed_runs(runs) == {"j": [[[1, 2], "was killed"], [[5], None]], "k": []}
    assert decode_crashed_runs(encode_crashed_runs(runs)) == runs
    assert [one.error().code for one in runs["j"]] == ["crashed", "timed-out"]
    assert "the process that ran it was killed" in str(runs["j"][0].error())
