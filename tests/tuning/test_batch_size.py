"""`batch: {size: auto}`: the size is found on the first rows, remembered, and kept by a job that goes on."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from support.fakes import Counter, FakeRuntime, double
from support.jobs import plan_for, rows, save
from support.logs import capture_logs
from support.memo_files import memo_files, rewrite

from ortdeploy.diagnostics import OutOfMemoryError
from ortdeploy.files.tuning_cache import KIND, TuningCache
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.plan.batching import SEARCHED
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.results.results import JobResult, Status
from ortdeploy.state import memo
from ortdeploy.tuning import batch_size

FIXED = 0.002  # seconds that every run takes, however many rows it has


class Clock:
    """A clock that runs move on, and a little each look at it."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += FIXED / 20
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "time", CLOCK)


def slow_up_to(most: int) -> FakeRuntime:
    """A runtime whose runs take as long for one row as for `most`, and twice as long for each further one."""

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        CLOCK.now += FIXED * max(len(feeds["x"]) / most, 1) ** 2
        return double(feeds)

    return FakeRuntime(run)


def auto(plan: Plan, most: int | None = None) -> Plan:
    steps = tuple(
        replace(step, batching=replace(step.batching, auto=True).bounded(most)) if isinstance(step, RunJob) else step
        for step in plan.steps
    )
    return replace(plan, steps=steps)


def execute(folder: Path, plan: Plan, runtime: FakeRuntime, stop_after: int | None = None) -> JobResult:
    observer = Counter()
    with open_ledger(folder / ".ortdeploy") as ledger:
        execution = Execution(
            plan=plan,
            run_id="r1",
            runtime=runtime,
            ledger=ledger,
            observer=observer,
            stop=lambda: stop_after is not None and len(observer.seen) >= stop_after,
            tuning_cache=TuningCache(folder / ".ortdeploy"),
        )
        (result,) = execution.run()
    return result


def sizes(runtime: FakeRuntime) -> set[int]:
    return {len(batch["x"]) for batch in runtime.sessions[0].batches}


def test_the_fastest_size_is_found_used_and_remembered(tmp_path: Path) -> None:
    save(tmp_path, range(300))
    plan = auto(plan_for(tmp_path, 300, rows_per_part=100))
    with capture_logs() as events:
        assert execute(tmp_path, plan, slow_up_to(64)).status is Status.DONE
    (chosen,) = [event for event in events if event["event"] == "batch.chosen"]
    assert chosen["rows"] == 64
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(300)]
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert record.batch_size == 64
    (tmp_path / "out").rename(tmp_path / "old")
    again = FakeRuntime(double)
    assert execute(tmp_path, plan, again).status is Status.DONE
    assert sizes(again) == {64, 300 % 128 % 64}


def test_a_job_that_goes_on_keeps_its_size(tmp_path: Path) -> None:
    save(tmp_path, range(2000))
    plan = auto(plan_for(tmp_path, 2000, rows_per_part=100))  # more blocks than are read before the stop
    assert execute(tmp_path, plan, slow_up_to(16), stop_after=2).status is Status.INTERRUPTED
    shutil.rmtree(tmp_path / ".ortdeploy" / memo.FOLDER / KIND)
    runtime = FakeRuntime(double)
    assert execute(tmp_path, plan, runtime).status is Status.DONE
    assert max(sizes(runtime)) == 16
    assert [row for row, _ in rows(tmp_path)] == list(range(2000))


def test_sizes_that_memory_is_too_small_for_are_not_chosen(tmp_path: Path) -> None:
    save(tmp_path, range(300))

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if len(feeds["x"]) > 8:
            raise OutOfMemoryError("Failed to allocate memory")
        CLOCK.now += FIXED
        return double(feeds)

    runtime = FakeRuntime(run)
    assert execute(tmp_path, auto(plan_for(tmp_path, 300)), runtime).status is Status.DONE
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert record.batch_size == 8


def test_no_size_is_chosen_whose_elements_kernels_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(300))
    monkeypatch.setattr(batch_size, "COUNTED", 8)
    runtime = slow_up_to(64)
    with capture_logs() as events:
        assert execute(tmp_path, auto(plan_for(tmp_path, 300)), runtime).status is Status.DONE
    (chosen,) = [event for event in events if event["event"] == "batch.chosen"]
    width = runtime.sessions[0].batches[0]["x"][0].size
    assert chosen["rows"] * width == 8
    assert max(sizes(runtime)) * width == 8


def test_no_size_is_tried_that_is_more_than_the_plan_allows(tmp_path: Path) -> None:
    save(tmp_path, range(300))
    runtime = slow_up_to(64)
    assert execute(tmp_path, auto(plan_for(tmp_path, 300), most=2), runtime).status is Status.DONE
    assert max(sizes(runtime)) == 2


def test_few_rows_and_rows_that_cannot_be_fed_leave_a_size(tmp_path: Path) -> None:
    save(tmp_path, range(3))
    assert execute(tmp_path, auto(plan_for(tmp_path, 3)), FakeRuntime(double)).committed == 3
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert record.batch_size in SEARCHED


def test_a_size_that_nobody_tries_is_not_taken_from_the_choices(tmp_path: Path) -> None:
    save(tmp_path, range(300))
    plan = auto(plan_for(tmp_path, 300))
    execute(tmp_path, plan, slow_up_to(8))
    for path in memo_files(tmp_path / ".ortdeploy", KIND):
        rewrite(path, 3)
    (tmp_path / "out").rename(tmp_path / "old")
    execute(tmp_path, plan, slow_up_to(8))
    (record,) = (one for one in read_outputs(tmp_path / ".ortdeploy") if one.status == "done")
    assert record.batch_size in SEARCHED
