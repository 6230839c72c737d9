"""Parts are what the plan says: borders count from the job's first row, and interruptions change no byte of any part."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.effort import effort
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.fuse import killed_at
from support.jobs import (
    READ,
    changed_job,
    execute,
    failed,
    plan_for,
    retrying,
    rows,
    save,
    written_as,
)

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.jobs.error_budget import ErrorBudget
from ortdeploy.ledger.opening import read_outputs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.results.results import Status
from ortdeploy.sources.files import file_states
from ortdeploy.streaming.block_sizes import BlockSizes, part_border
from ortdeploy.streaming.row_runner import RowRunner

BAD = (3, 4, 11, 27)


def job_of(plan: Plan, **changes: Any) -> RunJob:
    (step,) = (one for one in plan.steps if isinstance(one, RunJob))
    return changed_job(step, **changes)


def borders_of(folder: Path) -> list[tuple[int, int]]:
    (record,) = read_outputs(folder / ".ortdeploy")
    return [(part.start, part.rows) for part in record.parts]


def left(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("part-*"))}


@settings(max_examples=effort(30, 200), deadline=None)
@given(
    first_row=st.integers(0, 50), parts=st.integers(0, 5), within=st.integers(0, 40), batch=st.integers(1, 9),
    batches=st.integers(1, 5), runs=st.lists(st.floats(1e-4, 1), max_size=12),
)  # fmt: skip
def test_no_block_crosses_a_border_whatever_is_learned_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
    first_row: int, parts: int, within: int, batch: int, batches: int, runs: Sequence[float],
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("blocks")
    save(folder, range(1))
    job = job_of(plan_for(folder, 1, size=batch, rows_per_part=batch * batches), input={"first_row": first_row})
    size = job.batching.rows_per_part
    start = first_row + parts * size
    assert part_border(job, start) == start + size
    odd = start + within % size  # an older version may have stopped anywhere
    assert part_border(job, odd) - odd in range(batch, size + 1, batch)
    sizes = BlockSizes(job, start, 1)
    blocks = []
    for rows_, seconds in zip(islice(sizes, len(runs)), runs, strict=True):
        assert rows_ % batch == 0
        blocks.append(rows_)
        sizes.learn(rows_, seconds, 1)
    ends = {start, *(start + end for end in accumulate(blocks))}
    assert set(range(start, max(ends) + 1, size)) <= ends


@pytest.mark.parametrize("last", ["short", "drop"])
def test_borders_count_from_the_first_row_of_new_files(tmp_path: Path, last: str) -> None:
    save(tmp_path, range(30))
    settings_ = {"size": 4, "rows_per_part": 8, "last": last, "max_failed": 9}
    execute(tmp_path, plan_for(tmp_path, 30, **settings_), FakeRuntime(double))
    plan = plan_for(tmp_path, 30, **settings_)
    more = np.array([[row, row] for row in range(30, 51)], dtype=np.float32)
    np.save(tmp_path / "more.npy", more)
    files = file_states([str(tmp_path / "more.npy")], str(tmp_path))
    step = job_of(plan, input={"files": files, "first_row": 30, "rows": 51})
    result = execute(tmp_path, replace(plan, steps=(*plan.steps[:-1], step)), FakeRuntime(double))
    assert result.status is Status.DONE, result.reason
    assert borders_of(tmp_path) == [(0, 8), (8, 8), (16, 8), (24, 6), (30, 8), (38, 8), (46, 5)]
    skipped = {28, 29, 50} if last == "drop" else set()
    assert [row for row, _ in rows(tmp_path)] == [row for row in range(51) if row not in skipped]


def by_a_signal(folder: Path, plan: Plan, after: int) -> None:
    seen = Counter()
    execute(folder, plan, FakeRuntime(refuse_negative), observer=seen, stop=lambda: len(seen.seen) >= after)


def by_the_budget(folder: Path, plan: Plan, after: int) -> None:
    """Allow few failed rows, by the plan that allows more: parts name their plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ErrorBudget, "_limit", lambda *_: after)
        execute(folder, plan, FakeRuntime(refuse_negative))


def by_the_provider(folder: Path, plan: Plan, after: int) -> None:
    """Have no session left."""

    def fail(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if (np.abs(feeds["x"]) > after * 5).any():
            raise ProviderFailedError("the device is gone")
        return refuse_negative(feeds)

    execute(folder, plan, FakeRuntime(fail))


def by_a_second_signal(folder: Path, plan: Plan, after: int) -> None:
    seen: list[int] = []

    def interrupt(_: MemoryWatch) -> bool:
        seen.append(1)
        if len(seen) > after:
            raise KeyboardInterrupt
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryWatch, "is_near", interrupt)
        execute(folder, plan, FakeRuntime(refuse_negative))


def by_memory(folder: Path, plan: Plan, after: int) -> None:
    """Come to the memory limit, with batches that cannot be smaller."""
    looks: list[int] = []

    def is_near(_: MemoryWatch) -> bool:
        looks.append(1)
        return len(looks) > after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryWatch, "is_near", is_near)
        patch.setattr(MemoryWatch, "is_over", True)
        patch.setattr(RowRunner, "run_smaller", lambda _: False)
        execute(folder, plan, FakeRuntime(refuse_negative))


BEFORE_THE_FIRST_PART = 3
"""Events until then, in a new output."""


def by_a_kill(folder: Path, plan: Plan, after: int) -> None:
    with killed_at(BEFORE_THE_FIRST_PART + after):
        execute(folder, plan, FakeRuntime(refuse_negative))


def by_a_kill_at_the_stop(folder: Path, plan: Plan, after: int) -> None:
    """Die while what is through is kept, perhaps."""
    seen = Counter()
    with killed_at(BEFORE_THE_FIRST_PART + after):
        execute(
            folder, plan, FakeRuntime(refuse_negative), observer=seen, stop=lambda: len(seen.seen) >= after // 2 + 1
        )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(3, 50), deadline=None)
@given(
    interruptions=st.lists(
        st.tuples(
            st.sampled_from([
                by_a_signal, by_the_budget, by_memory, by_a_kill, by_the_provider, by_a_second_signal, by_a_kill_at_the_stop,
            ]),
            st.integers(0, 6),
        ),
        max_size=4,
    ),
    last=st.sampled_from(["short", "pad", "drop"]),
    kind=st.sampled_from(sorted(READ)),
    rows_per_part=st.sampled_from([9, 18, 99]),
)  # fmt: skip
def test_interruptions_change_no_byte_of_any_part(
    tmp_path_factory: pytest.TempPathFactory,
    interruptions: Sequence[tuple[Callable[[Path, Plan, int], None], int]],
    last: str,
    kind: str,
    rows_per_part: int,
) -> None:
    found = []
    for disturbances in ((), interruptions):
        folder = tmp_path_factory.mktemp("run")
        save(folder, [-1.0 - row if row in BAD else float(row) for row in range(35)])
        plan = written_as(plan_for(folder, 35, size=3, rows_per_part=rows_per_part, last=last, max_failed=9), kind)
        for interrupt, after in disturbances:
            interrupt(folder, plan, after)
        assert execute(folder, plan, FakeRuntime(refuse_negative)).status in {Status.DONE, Status.NOTHING_TO_DO}
        assert [entry["row"] for entry in failed(folder)] == list(BAD)
        starts = range(0, 35, rows_per_part)
        assert borders_of(folder) == [(start, min(rows_per_part, 35 - start)) for start in starts]
        assert not list((folder / "out").glob(".*"))
        found.append(left(folder))
    assert found[0] == found[1]


def test_a_retry_runs_failed_rows_of_a_job_that_drops_its_last_batch(tmp_path: Path) -> None:
    save(tmp_path, [0, -1, 2, 3, 4, -5])
    plan = plan_for(tmp_path, 6, size=4, last="drop", max_failed=9)
    assert execute(tmp_path, plan, FakeRuntime(refuse_negative)).skipped == 2
    result = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (result.committed, result.failed, result.skipped) == (4, 0, 2)
    assert [row for row, _ in rows(tmp_path)] == [0, 1, 2, 3]


def test_a_ledger_that_is_behind_its_parts_goes_on_and_writes_them_again(tmp_path: Path) -> None:
    save(tmp_path, range(20))
    plan = plan_for(tmp_path, 20)

    def fail_late(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if (feeds["x"] > 8).any():
            raise ProviderFailedError("the device is gone")
        return double(feeds)

    assert execute(tmp_path, plan, FakeRuntime(fail_late)).committed == 8
    behind = (tmp_path / ".ortdeploy/state.db").read_bytes()
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    whole = left(tmp_path)
    (tmp_path / ".ortdeploy/state.db").write_bytes(behind)
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert left(tmp_path) == whole
