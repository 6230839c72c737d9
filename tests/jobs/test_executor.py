"""The executor with a fake runtime: parts, resuming, budgets, stopping; the invariant over any sizes."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.effort import effort
from support.facts import make_facts
from support.fakes import Counter, FakeRuntime, double, refuse_negative, without_row_checks
from support.jobs import changed, execute, failed, plan_for, plan_with_all, plan_with_sessions, report, rows, save
from support.logs import capture_logs
from support.specs import make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.feeds import row_sources
from ortdeploy.files.names import MARKER, REPORT
from ortdeploy.jobs import executor, job_statistics, opened_models
from ortdeploy.jobs.pause_watch import PauseWatch
from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.plan.made_by import made_by
from ortdeploy.plan.steps import OpenSession, Plan, RunJob
from ortdeploy.plan.timing import JobTiming
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.reports.report import FAILED
from ortdeploy.results.results import Status
from ortdeploy.results.rows import Block
from ortdeploy.sources.arrays import ArraySource
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.files import file_states
from ortdeploy.sources.protocol import Source, Wanted


def test_rows_come_out_in_order_in_parts(tmp_path: Path) -> None:
    save(tmp_path, range(19))
    result = execute(tmp_path, plan_for(tmp_path, 19), FakeRuntime(double))
    assert (result.status, result.committed, result.failed, result.skipped) == (Status.DONE, 19, 0, 0)
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(19)]
    assert [path.name for path in sorted((tmp_path / "out").glob("*"))] == [
        FAILED, MARKER, REPORT, "part-00000000.jsonl", "part-00000001.jsonl", "part-00000002.jsonl",
    ]  # fmt: skip
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert [(part.start, part.rows) for part in record.parts] == [(0, 8), (8, 8), (16, 3)]


def test_the_report_is_what_happened(tmp_path: Path) -> None:
    save(tmp_path, range(10))
    execute(tmp_path, plan_for(tmp_path, 10), FakeRuntime(double))
    found = report(tmp_path)
    assert found["format_version"] == 1
    assert found["rows"] == {"input": 10, "committed": 10, "failed": 0, "skipped": 0}
    assert found["status"] == "done"
    assert found["placement"] == {"CPUExecutionProvider": 1}
    assert found["session_run"]["count"] == 3
    assert found["session_run"]["p50"] > 0
    assert found["peak_memory_bytes"] > 0


def test_a_bad_row_fails_alone(tmp_path: Path) -> None:
    save(tmp_path, [0, 1, -2, 3, 4, 5, 6, -7, 8])
    result = execute(tmp_path, plan_for(tmp_path, 9, max_failed=2), FakeRuntime(refuse_negative))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 7, 2)
    assert [row for row, _ in rows(tmp_path)] == [0, 1, 3, 4, 5, 6, 8]
    assert [(entry["row"], entry["key"], entry["stage"], entry["code"], entry["attempts"]) for entry in failed(tmp_path)] == [
        (2, {"row": 2}, "run", "run-refused", 1), (7, {"row": 7}, "run", "run-refused", 1),
    ]  # fmt: skip


def test_one_row_over_the_budget_stops_the_job_and_keeps_what_is_committed(tmp_path: Path) -> None:
    save(tmp_path, [*range(10), -1, 11])
    result = execute(tmp_path, plan_for(tmp_path, 12), FakeRuntime(refuse_negative))
    assert (result.status, result.committed, result.failed) == (Status.FAILED, 8, 1)
    assert result.reason is not None
    assert "max_failed: 0" in result.reason
    assert [row for row, _ in rows(tmp_path)] == list(range(8))
    assert [entry["row"] for entry in failed(tmp_path)] == [10]
    assert report(tmp_path)["status"] == "failed"


def test_a_larger_budget_lets_the_job_go_on_where_it_stopped(tmp_path: Path) -> None:
    save(tmp_path, [*range(10), -1, 11])
    execute(tmp_path, plan_for(tmp_path, 12), FakeRuntime(refuse_negative))
    runtime, observer = FakeRuntime(refuse_negative), Counter()
    result = execute(tmp_path, plan_for(tmp_path, 12, max_failed=1), runtime, observer=observer)
    assert (result.status, result.committed, result.failed) == (Status.DONE, 11, 1)
    assert observer.started == [("run", 8, 12)]
    assert float(runtime.sessions[0].batches[0]["x"][0, 0]) == 8.0
    assert [entry["row"] for entry in failed(tmp_path)] == [10]


@pytest.mark.parametrize(("share", "status"), [("10%", Status.DONE), ("9.9%", Status.FAILED)])
def test_a_share_counts_against_all_rows(tmp_path: Path, share: str, status: Status) -> None:
    save(tmp_path, [-1, -1, *range(18)])
    assert execute(tmp_path, plan_for(tmp_path, 20, max_failed=share), FakeRuntime(refuse_negative)).status == status


def test_a_finished_job_has_nothing_to_do(tmp_path: Path) -> None:
    save(tmp_path, range(5))
    execute(tmp_path, plan_for(tmp_path, 5), FakeRuntime(double))
    runtime = FakeRuntime(double)
    result = execute(tmp_path, plan_for(tmp_path, 5), runtime)
    assert result.status == Status.NOTHING_TO_DO
    assert runtime.sessions[0].batches == []


def test_an_output_of_another_plan_is_not_touched(tmp_path: Path) -> None:
    save(tmp_path, range(5))
    execute(tmp_path, plan_for(tmp_path, 5), FakeRuntime(double))
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    result = execute(tmp_path, plan_for(tmp_path, 5, size=2), FakeRuntime(double))
    assert result.status == Status.FAILED
    assert result.reason is not None
    assert "another plan" in result.reason
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert [record.status for record in read_outputs(tmp_path / ".ortdeploy")] == ["done"]


def test_an_output_folder_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    save(tmp_path, range(5))
    execute(tmp_path, plan_for(tmp_path, 5), FakeRuntime(double))
    (tmp_path / "out").rename(tmp_path / "old")
    assert execute(tmp_path, plan_for(tmp_path, 5, size=2), FakeRuntime(double)).status == Status.DONE
    assert len(rows(tmp_path)) == 5


def test_a_stop_leaves_whole_parts_and_goes_on_later(tmp_path: Path) -> None:
    save(tmp_path, range(200))
    observer = Counter()
    result = execute(
        tmp_path, plan_for(tmp_path, 200), FakeRuntime(double), observer=observer, stop=lambda: len(observer.seen) >= 3
    )
    assert result.status == Status.INTERRUPTED
    assert 8 <= result.committed < 100  # a whole part is there when the third batch is counted
    assert all(path.suffix == ".begun" for path in (tmp_path / "out").glob(".*"))
    assert execute(tmp_path, plan_for(tmp_path, 200), FakeRuntime(double)).status == Status.DONE
    assert [row for row, _ in rows(tmp_path)] == list(range(200))


def test_a_stop_commits_no_part_that_is_not_whole_and_its_failed_rows_are_shown(tmp_path: Path) -> None:
    save(tmp_path, [0, -1, *range(2, 2000)])
    asked = []

    def stop_in_the_second_batch(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        asked.append(len(feeds))
        return refuse_negative(feeds)

    plan = plan_for(tmp_path, 2000, rows_per_part=2000, max_failed=1)
    result = execute(tmp_path, plan, FakeRuntime(stop_in_the_second_batch), stop=lambda: len(asked) >= 2)
    assert (result.status, result.committed, result.failed) == (Status.INTERRUPTED, 0, 1)
    assert [entry["row"] for entry in failed(tmp_path)] == [1]
    assert rows(tmp_path) == []
    assert execute(tmp_path, plan, FakeRuntime(refuse_negative)).status == Status.DONE
    assert [row for row, _ in rows(tmp_path)] == [0, *range(2, 2000)]
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert [(part.start, part.rows, part.failed) for part in record.parts] == [(0, 2000, 1)]


def test_last_pad_and_last_drop(tmp_path: Path) -> None:
    save(tmp_path, range(6))
    runtime = FakeRuntime(double)
    execute(tmp_path, plan_for(tmp_path, 6, last="pad"), runtime)
    assert [len(batch["x"]) for batch in runtime.sessions[0].batches] == [4, 4]
    assert rows(tmp_path)[-1] == (5, 10.0)
    (tmp_path / "out").rename(tmp_path / "old")
    result = execute(tmp_path, plan_for(tmp_path, 6, last="drop"), FakeRuntime(double))
    assert (result.committed, result.skipped) == (4, 2)


def less_mean(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """A graph that mixes rows: one NaN reaches all of them."""
    return {"y": feeds["x"] - feeds["x"].mean(axis=0)}


@pytest.mark.parametrize(("on_nan", "expected"), [("fail", (5, 1, 0)), ("skip", (5, 0, 1))])
def test_a_row_with_nan_does_not_take_the_others_of_its_batch_along(
    tmp_path: Path, on_nan: str, expected: tuple[int, int, int]
) -> None:
    save(tmp_path, [1, 2, float("nan"), 6, 7, 8])
    result = execute(tmp_path, plan_for(tmp_path, 6, on_nan=on_nan, max_failed=1), FakeRuntime(less_mean))
    assert (result.committed, result.failed, result.skipped) == expected
    assert rows(tmp_path) == [(0, -2.0), (1, -1.0), (3, 3.0), (4, -0.5), (5, 0.5)]


@pytest.mark.parametrize(("on_nan", "expected"), [("keep", (4, 0, 0)), ("fail", (3, 1, 0)), ("skip", (3, 0, 1))])
def test_rows_whose_outputs_are_not_finite(tmp_path: Path, on_nan: str, expected: tuple[int, int, int]) -> None:
    save(tmp_path, [0, float("inf"), 2, 3])
    result = execute(tmp_path, plan_for(tmp_path, 4, on_nan=on_nan, max_failed=1), FakeRuntime(double))
    assert (result.committed, result.failed, result.skipped) == expected


def test_an_input_that_shrinks_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    save(tmp_path, range(5))
    result = execute(tmp_path, plan_for(tmp_path, 9), FakeRuntime(double))
    assert result.status == Status.FAILED
    assert result.reason is not None
    assert "9 rows and 5 are accounted for" in result.reason


def test_batches_whose_rows_differ_in_shape_from_run_to_run_are_run_once(tmp_path: Path) -> None:
    save(tmp_path, range(400))

    def of_some_length(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        length = 2 + int(feeds["x"][0, 0]) // 4 % 3
        return {"y": np.repeat(feeds["x"][:, :1], length, axis=1)}

    runtime = FakeRuntime(of_some_length)
    result = execute(tmp_path, plan_for(tmp_path, 400, rows_per_part=400), runtime)
    assert (result.status, result.committed) == (Status.DONE, 400)
    lengths = [len(json.loads(line)["y"]) for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    assert lengths == [2 + row // 4 % 3 for row in range(400)]
    assert len(runtime.sessions[0].batches) == 100


def test_memory_that_runs_out_ends_the_job_with_a_reason(tmp_path: Path) -> None:
    save(tmp_path, range(4))

    def run_out(_feeds: object) -> "dict[str, np.ndarray]":
        raise MemoryError("Unable to allocate 9 GiB")

    result = execute(tmp_path, plan_for(tmp_path, 4), FakeRuntime(run_out))
    assert result.status == Status.FAILED
    assert result.reason is not None
    assert "memory ran out" in result.reason


def test_an_output_of_the_wrong_length_is_never_written(tmp_path: Path) -> None:
    save(tmp_path, range(4))
    result = execute(tmp_path, plan_for(tmp_path, 4), FakeRuntime(lambda feeds: {"y": feeds["x"][:1].sum(axis=1)[:0]}))
    assert result.status == Status.FAILED
    assert rows(tmp_path) == []


def test_events_carry_the_run_job_model_and_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_models, "memory_of_the_group", lambda: None)  # one with a limit has an event more
    save(tmp_path, [1, -1])
    with capture_logs(context=True) as events:
        execute(tmp_path, plan_for(tmp_path, 2, max_failed=1), FakeRuntime(refuse_negative))
    assert [event["event"] for event in events] == [
        "session.opened", "job.started", "row.failed", "block.finished", "part.committed", "job.finished",
    ]  # fmt: skip
    assert all(event["job"] == "run" and event["model"] == "m" for event in events[1:])
    assert all(event["providers"] == ["CPUExecutionProvider"] for event in events)


def test_the_first_session_that_opens_is_used_and_the_others_are_named(tmp_path: Path) -> None:
    save(tmp_path, range(5))
    runtime = FakeRuntime(double, broken=("npu",))
    with capture_logs() as events:
        result = execute(tmp_path, plan_with_sessions(tmp_path, 5), runtime)
    assert result.status == Status.DONE
    assert runtime.opened == ["npu", "gpu"]
    assert [(e["session"], e["reason"]) for e in events if e["event"] == "session.refused"] == [
        ("npu", "npu is broken")
    ]
    assert (report(tmp_path)["session"], report(tmp_path)["sessions_passed_over"]) == ("gpu", {"npu": "npu is broken"})


def test_a_provider_that_fails_during_a_run_hands_over_where_it_stopped(tmp_path: Path) -> None:
    save(tmp_path, range(20))
    batches: list[float] = []

    def fail_on_the_fourth(feeds: "Mapping[str, np.ndarray]") -> "Mapping[str, np.ndarray]":
        batches.append(float(feeds["x"][0, 0]))
        if len(batches) == 4:
            raise ProviderFailedError("the device is gone")
        return double(feeds)

    runtime = FakeRuntime(fail_on_the_fourth)
    with capture_logs() as events:
        result = execute(tmp_path, plan_with_sessions(tmp_path, 20), runtime)
    assert (result.status, result.committed, result.failed) == (Status.DONE, 20, 0)
    assert runtime.opened == ["npu", "gpu"]
    assert batches in ([0.0, 4.0, 8.0, 12.0, 12.0, 16.0], [0.0, 4.0, 8.0, 12.0, 8.0, 12.0, 16.0])  # by the blocks
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(20)]
    assert "session.failed" in [event["event"] for event in events]
    assert report(tmp_path)["sessions_passed_over"] == {"npu": "the device is gone"}


def test_the_time_of_a_job_runs_on_when_another_session_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, range(20))
    told: list[float | None] = []

    def watch(timing: JobTiming, folder: Path, paused_for: str, *, began: float | None) -> PauseWatch:
        told.append(began)
        return PauseWatch(timing, folder, paused_for, began=began)

    monkeypatch.setattr(executor, "PauseWatch", watch)
    failures = iter([ProviderFailedError("the device is gone")])

    def fail_once(feeds: "Mapping[str, np.ndarray]") -> "Mapping[str, np.ndarray]":
        for failure in failures:
            raise failure
        return double(feeds)

    assert execute(tmp_path, plan_with_sessions(tmp_path, 20), FakeRuntime(fail_once)).status == Status.DONE
    before_sessions, first, second = told
    assert before_sessions is None
    assert first == second is not None


def test_when_no_session_is_left_the_job_fails_with_every_reason(tmp_path: Path) -> None:
    save(tmp_path, range(5))
    result = execute(tmp_path, plan_with_sessions(tmp_path, 5), FakeRuntime(double, broken=("npu", "gpu", "cpu")))
    assert result.status == Status.FAILED
    assert result.reason == "npu is broken; gpu is broken; cpu is broken"


class Barrier:
    """Makes every call wait until so many sessions are in a call at once: they run at the same time, or not at all."""

    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties, timeout=20)

    def __call__(self, feeds: "Mapping[str, np.ndarray]") -> "Mapping[str, np.ndarray]":
        self.barrier.wait()
        return double(feeds)


def test_a_job_that_cannot_begin_again_keeps_its_counts(tmp_path: Path) -> None:
    save(tmp_path, range(9))
    execute(tmp_path, plan_for(tmp_path, 9), FakeRuntime(double))
    save(tmp_path, range(20))
    plan = plan_for(tmp_path, 20)
    with capture_logs(context=True) as events:
        held_up = execute(tmp_path, changed(plan, timing=JobTiming(until=0.0)), FakeRuntime(double))
    (told,) = (one for one in events if one["event"] == "job.paused")
    assert (held_up.status, held_up.committed) == (Status.PAUSED, 9)
    assert (told["job"], told["model"], told["committed"]) == (held_up.job, "m", 9)
    broken = tuple(one.name for step in plan.steps if isinstance(step, OpenSession) for one in step.candidates)
    with capture_logs(context=True) as events:
        result = execute(tmp_path, plan, FakeRuntime(double, broken=broken))
    (told,) = (one for one in events if one["event"] == "job.failed")
    assert (result.status, result.committed) == (Status.FAILED, 9)
    assert (told["job"], told["model"], told["committed"], told["kept"]) == (result.job, "m", 9, 0)


def test_a_job_that_a_signal_keeps_from_beginning_again_keeps_its_counts(tmp_path: Path) -> None:
    save(tmp_path, [1, 2, -3])
    execute(tmp_path, plan_for(tmp_path, 3, max_failed=1), FakeRuntime(refuse_negative))
    save(tmp_path, [1, 2, -3, 4])
    plan = changed(plan_for(tmp_path, 4, max_failed=1), output={"committed_rows": 3})
    result = execute(tmp_path, plan, FakeRuntime(double), stop=lambda: True)
    assert (result.status, result.committed, result.failed) == (Status.INTERRUPTED, 2, 1)


def test_all_sessions_take_batches_at_once_and_the_order_is_the_inputs(tmp_path: Path) -> None:
    save(tmp_path, range(36))
    runtime = FakeRuntime(Barrier(3))
    result = execute(tmp_path, plan_with_all(tmp_path, 36), runtime)
    assert (result.status, result.committed) == (Status.DONE, 36)
    assert runtime.opened == ["npu", "gpu", "cpu"]
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(36)]
    sessions = report(tmp_path)["sessions"]
    assert [(one["session"], one["batches"], one["rows"]) for one in sessions] == [
        ("npu", 3, 12),
        ("gpu", 3, 12),
        ("cpu", 3, 12),
    ]
    assert report(tmp_path)["session_run"]["count"] == 9


def test_threads_that_decode_are_no_threads_of_sessions_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = ArraySource.blocks

    def decoded(source: ArraySource, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        return (replace(block, decoding_cpu=100.0) for block in blocks(source, start, sizes))

    monkeypatch.setattr(ArraySource, "blocks", decoded)
    calls = count()
    monkeypatch.setattr(job_statistics, "process_usage", lambda: {"cpu_seconds_user": 250.0 * (next(calls) > 0)})
    save(tmp_path, range(8))
    execute(tmp_path, plan_for(tmp_path, 8), FakeRuntime(double))
    stages = report(tmp_path)["stages"]
    assert int(stages["read"]["cpu_seconds"]) == 200
    assert int(stages["run"]["cpu_seconds"]) in {49, 50}, "what is left is the sessions'"


@pytest.mark.parametrize(("is_told", "threads"), [(False, 4), (True, 1)])
def test_no_row_is_decoded_beside_a_run_that_may_be_blamed_for_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool, threads: int
) -> None:
    save(tmp_path, range(4))
    wanted: list[Wanted] = []

    def opened(kind: str, files: Sequence[str], folder: str, columns: Wanted) -> AbstractContextManager[Source]:
        wanted.append(columns)
        return open_input(kind, files, folder, columns)

    monkeypatch.setattr(row_sources, "open_input", opened)
    monkeypatch.setattr(row_sources, "usable_cores", lambda: 4)
    on_run = (lambda _job, _rows: None) if is_told else None
    execute(tmp_path, plan_for(tmp_path, 4), FakeRuntime(double), on_run=on_run)
    assert [one.threads for one in wanted] == [threads]


def test_a_session_is_opened_as_often_as_the_manifest_says(tmp_path: Path) -> None:
    save(tmp_path, range(16))
    plan = plan_with_sessions(tmp_path, 16, rows_per_part=4)
    opening, run = plan.steps
    assert isinstance(opening, OpenSession)
    twice = tuple(replace(candidate, count=2) for candidate in opening.candidates)
    runtime = FakeRuntime(Barrier(2))
    assert (
        execute(tmp_path, replace(plan, steps=(replace(opening, candidates=twice), run)), runtime).status == Status.DONE
    )
    assert runtime.opened == ["npu", "npu"]
    assert [(one["session"], one["instance"]) for one in report(tmp_path)["sessions"]] == [("npu", 0), ("npu", 1)]


def test_use_all_needs_every_session_unless_one_may_be_missing(tmp_path: Path) -> None:
    save(tmp_path, range(12))
    failed_run = execute(tmp_path, plan_with_all(tmp_path, 12), FakeRuntime(double, broken=("gpu",)))
    assert (failed_run.status, failed_run.reason) == (Status.FAILED, "gpu is broken")
    plan = plan_with_all(tmp_path, 12, on_unavailable="next")
    assert execute(tmp_path, plan, FakeRuntime(double, broken=("gpu",))).status == Status.DONE
    assert [one["session"] for one in report(tmp_path)["sessions"]] == ["npu", "cpu"]
    assert report(tmp_path)["sessions_passed_over"] == {"gpu": "gpu is broken"}


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_sessions_that_fail_during_a_run_leave_their_batches_to_the_others(tmp_path: Path, failing: int) -> None:
    save(tmp_path, range(40))
    lock, calls = threading.Lock(), 0

    def fail_first(feeds: "Mapping[str, np.ndarray]") -> "Mapping[str, np.ndarray]":
        nonlocal calls
        with lock:
            calls += 1
            fails = calls <= failing
        if fails:
            raise ProviderFailedError("the device is gone")
        return double(feeds)

    result = execute(tmp_path, plan_with_all(tmp_path, 40, on_unavailable="next"), FakeRuntime(fail_first))
    if failing == 3:
        assert (result.status, result.committed) == (Status.FAILED, 0)
    else:
        assert (result.status, result.committed) == (Status.DONE, 40)
        assert rows(tmp_path) == [(row, row * 2.0) for row in range(40)]
    failures = [one["failure"] for one in report(tmp_path)["sessions"]]
    assert failures.count("the device is gone") == failing
    assert len(result.dropped) == failing


def test_without_leave_to_go_on_one_failing_session_fails_the_job(tmp_path: Path) -> None:
    save(tmp_path, range(40))
    runtime = FakeRuntime(double)

    def fail_late(feeds: "Mapping[str, np.ndarray]") -> "Mapping[str, np.ndarray]":
        if feeds["x"][0, 0] == 20:
            raise ProviderFailedError("the device is gone")
        return double(feeds)

    runtime.function = fail_late
    result = execute(tmp_path, plan_with_all(tmp_path, 40), runtime)
    assert (result.status, result.reason) == (Status.FAILED, "the device is gone")
    assert [row for row, _ in rows(tmp_path)] == list(range(20))


def test_a_stop_ends_a_job_on_several_sessions_and_the_next_run_goes_on(tmp_path: Path) -> None:
    save(tmp_path, range(40))
    calls = iter(range(100))
    result = execute(tmp_path, plan_with_all(tmp_path, 40), FakeRuntime(double), stop=lambda: next(calls) >= 8)
    assert result.status == Status.INTERRUPTED
    assert execute(tmp_path, plan_with_all(tmp_path, 40), FakeRuntime(double)).status == Status.DONE
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(40)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(6, 100), deadline=None)
@given(
    count=st.integers(0, 40),
    size=st.integers(1, 9),
    rows_per_part=st.integers(1, 12),
    last=st.sampled_from(["short", "pad", "drop"]),
    stop_after=st.integers(0, 12),
    data=st.data(),
)
def test_every_row_is_committed_failed_or_skipped_once_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    size: int,
    rows_per_part: int,
    last: str,
    stop_after: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    bad = data.draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=count))
    save(folder, [-1.0 if row in bad else float(row) for row in range(count)])
    plan = plan_for(folder, count, size=size, rows_per_part=rows_per_part, last=last, max_failed="100%")
    observer = Counter()
    execute(
        folder, plan, FakeRuntime(refuse_negative), observer=observer, stop=lambda: len(observer.seen) >= stop_after
    )
    result = execute(folder, plan, FakeRuntime(refuse_negative))
    dropped = count % size if last == "drop" else 0
    kept = [row for row in range(count - dropped) if row not in bad]
    assert result.status in {Status.DONE, Status.NOTHING_TO_DO}
    assert [row for row, _ in rows(folder)] == kept
    assert [entry["row"] for entry in failed(folder)] == sorted(row for row in bad if row < count - dropped)
    assert report(folder)["rows"] == {
        "input": count, "committed": len(kept), "failed": len(bad & set(range(count - dropped))), "skipped": dropped,
    }  # fmt: skip
    job = next(step for step in plan.steps if isinstance(step, RunJob))
    assert job.batching.rows_per_part % size == 0


def test_a_part_that_was_not_committed_goes_when_its_rows_fail_now(tmp_path: Path) -> None:
    """Killed between the rename and the ledger, and then no row of the part gives a result any more."""
    save(tmp_path, [-1.0] * 8)
    plan = plan_for(tmp_path, 8, max_failed=8)
    step = plan.steps[-1]
    assert isinstance(step, RunJob)
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        ledger.begin("../out", made_by=made_by(plan, step), job="run", run="r0", files=step.input.files)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/part-00000000.jsonl").write_text('{"row": 0, "y": [1, 1]}\n')
    result = execute(tmp_path, plan, FakeRuntime(refuse_negative))
    assert (result.status, result.failed) == (Status.DONE, 8)
    assert rows(tmp_path) == []


@pytest.mark.slow
def test_a_list_of_failed_rows_that_stays_empty_is_left_as_it_is(tmp_path: Path) -> None:
    save(tmp_path, range(40))
    calls = iter(range(100))
    first = execute(tmp_path, plan_with_all(tmp_path, 40), FakeRuntime(double), stop=lambda: next(calls) >= 8)
    file = (tmp_path / "out" / FAILED).stat()
    second = execute(tmp_path, plan_with_all(tmp_path, 40), FakeRuntime(double))
    assert [first.status, second.status] == [Status.INTERRUPTED, Status.DONE]
    assert failed(tmp_path) == []
    assert (tmp_path / "out" / FAILED).stat().st_ino == file.st_ino


THREE_JOBS = """\
version: 1
models: {a: {path: m.onnx}, b: {path: m.onnx}, c: {path: m.onnx}}
jobs:
  one: {model: a, input: {path: data.npy}, output: {path: out/one}}
  two: {model: b, input: {path: data.npy}, output: {path: out/two}}
  three: {model: c, input: {path: data.npy}, output: {path: out/three}}
"""


def three_jobs(folder: Path) -> Plan:
    spec = make_spec(THREE_JOBS, folder=str(folder))
    model = {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}
    columns = {"columns": {"array": "float32[rows,2]"}, "rows": 19}
    facts = make_facts(
        spec, {"models": dict.fromkeys("abc", model), "inputs": dict.fromkeys(("one", "two", "three"), columns)}
    )
    states = file_states([str(folder / "data.npy")], str(folder))
    inputs = {job: replace(found, states=states) for job, found in facts.inputs.items()}
    return without_row_checks(make_plan(resolve(spec, replace(facts, inputs=inputs))))


def results(folder: Path, plan: Plan, runtime: FakeRuntime, stop: Callable[[], bool]) -> list[tuple[str, Status]]:
    with open_ledger(folder / ".ortdeploy") as ledger:
        execution = executor.Execution(
            plan=plan, run_id="r1", runtime=runtime, ledger=ledger, observer=Counter(), stop=stop
        )
        return [(result.job, result.status) for result in execution.run()]


def test_after_a_signal_no_session_is_opened_and_no_job_begins(tmp_path: Path) -> None:
    save(tmp_path, range(19))
    runtime = FakeRuntime(double)
    found = results(
        tmp_path, three_jobs(tmp_path), runtime, lambda: bool(runtime.sessions and runtime.sessions[0].batches)
    )
    assert runtime.opened == ["a"]
    assert found[1:] == [("two", Status.INTERRUPTED), ("three", Status.INTERRUPTED)]
    assert not (tmp_path / "out/two").exists()
    again = FakeRuntime(double)
    assert results(tmp_path, three_jobs(tmp_path), again, lambda: True) == [
        (job, Status.INTERRUPTED) for job in ("one", "two", "three")
    ]
    assert again.opened == []


def test_a_signal_while_a_session_is_opened_opens_no_other(tmp_path: Path) -> None:
    save(tmp_path, range(19))
    runtime = FakeRuntime(double, broken=("npu",))
    plan = plan_with_sessions(tmp_path, 19)
    assert execute(tmp_path, plan, runtime, stop=lambda: bool(runtime.opened)).status == Status.INTERRUPTED
    assert runtime.opened == ["npu"]
    assert not (tmp_path / "out").exists()


def test_a_signal_as_a_provider_fails_opens_no_other(tmp_path: Path) -> None:
    save(tmp_path, range(19))

    def fail(_feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        raise ProviderFailedError("gone")

    runtime = FakeRuntime(fail)
    plan = plan_with_sessions(tmp_path, 19)
    stop = lambda: bool(runtime.sessions and runtime.sessions[0].batches)  # noqa: E731
    assert execute(tmp_path, plan, runtime, stop=stop).status in {Status.INTERRUPTED, Status.FAILED}
    assert runtime.opened == ["npu"]
