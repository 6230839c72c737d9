"""A job whose parts several workers make as a driver tells them: whoever is lost, every row is there once."""

import errno
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.crews import Clock, FakeCrew, drive
from support.effort import effort
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.jobs import changed, execute, failed, plan_for, report, rows, save
from support.logs import capture_logs
from support.shards import run_shard

from ortdeploy.application.driver import Answer
from ortdeploy.application.part_queue import OVERDUE_SECONDS
from ortdeploy.application.supervisor import ChildBugError
from ortdeploy.facts.data import FileState
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.jobs.environment_check import FIRST, facts_of_this_worker
from ortdeploy.ledger.open_plans import open_plans
from ortdeploy.ledger.opening import read_outputs
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import Status

ROWS = 46  # six parts, the last one short
VALUES = [float(row) for row in range(ROWS)]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    save(tmp_path, VALUES)
    return plan_for(tmp_path, ROWS)


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("part-*"))}


def lost(worker: int, part: int | None, *, gone: bool = False, reason: str = "its node is gone") -> Answer:
    return Answer(worker=worker, part=part, reason=reason, gone=gone)


def said(worker: int, part: int | None, kind: str, **others: Any) -> Answer:
    return Answer(worker=worker, part=part, said={"kind": kind, **others})


def test_two_workers_make_the_parts_of_one_machine(
    tmp_path: Path, plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = tmp_path_factory.mktemp("alone")
    save(alone, VALUES)
    execute(alone, plan_for(alone, ROWS), FakeRuntime(double))
    pool, observer = FakeCrew(tmp_path, plan, 2), Counter()
    ended = drive(tmp_path, plan, pool, observer=observer)
    assert (ended.status, ended.committed, parts(tmp_path)) == (Status.DONE, ROWS, parts(alone))
    assert sorted(part for _, part in pool.made) == list(range(6))
    assert {worker for worker, _ in pool.made} == {0, 1}
    assert {one["shard"] for one in report(tmp_path)["workers"]} == {"fake 0", "fake 1"}
    assert not open_plans(SharedFolder(tmp_path / "out"))
    assert observer.seen[-1] == (ROWS, 0)


def test_nobody_is_hired_where_every_part_is_decided(tmp_path: Path, plan: Plan) -> None:
    drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1))
    again = FakeCrew(tmp_path, plan, 1, fault=lambda worker, part: said(worker, part, "bug", reason="asked again"))
    assert drive(tmp_path, plan, again).status is Status.DONE


def test_a_part_that_took_down_three_workers_fails_the_job_by_name_and_the_rest_stays(
    tmp_path: Path, plan: Plan
) -> None:
    def poison(worker: int, part: int | None) -> Answer | None:
        return said(worker, part, "failed", reason="its process was ended by SIGABRT") if part == 2 else None

    ended = drive(tmp_path, plan, FakeCrew(tmp_path, plan, 3, fault=poison))
    assert ended.status is Status.FAILED
    assert "part 2 took down its worker 3 times: worker 1 on" in (ended.reason or "")
    assert "was ended by SIGABRT" in (ended.reason or "")
    assert "It has the rows 16 to 23; " in (ended.reason or "")
    assert "of 6 parts are left to do" in (ended.reason or "")
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert record.reason == ended.reason
    ended = drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1))
    assert (ended.status, [row for row, _ in rows(tmp_path)]) == (Status.DONE, list(range(ROWS)))


def test_a_worker_whose_node_dies_is_asked_again_and_its_parts_are_made(tmp_path: Path, plan: Plan) -> None:
    deaths = iter([True, False, True])

    def die(worker: int, part: int | None) -> Answer | None:
        return lost(worker, part) if (worker, part is None) == (0, False) and next(deaths, False) else None

    pool = FakeCrew(tmp_path, plan, 2, fault=die)
    with capture_logs() as logged:
        assert drive(tmp_path, plan, pool).status is Status.DONE
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))
    (first, *_) = [one for one in logged if one["event"] == "worker.lost"]
    assert (first["gone"], first["reason"]) == (False, "its node is gone")


def test_a_worker_that_is_gone_is_not_asked_again_and_without_any_the_job_fails(tmp_path: Path, plan: Plan) -> None:
    asked: list[tuple[int, int | None]] = []

    def die(worker: int, part: int | None) -> Answer | None:
        asked.append((worker, part))
        return None if part is None else lost(worker, part, gone=True, reason=f"actor {worker} died")

    ended = drive(tmp_path, plan, FakeCrew(tmp_path, plan, 2, fault=die))
    assert ended.status is Status.FAILED
    assert "no worker is left: worker 0 on" in (ended.reason or "")
    assert "actor 1 died; 6 of 6 parts are left to do" in (ended.reason or "")
    assert asked.count((0, None)) == asked.count((1, None)) == 1


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"onnxruntime": "1.30.0"}, "onnxruntime is 1.30.0 there and"),
        ({"architecture": "riscv"}, "architecture is riscv"),
    ],
)
def test_a_worker_with_other_versions_makes_no_part_and_is_named(
    tmp_path: Path, plan: Plan, versions: dict[str, str], words: str
) -> None:
    ours = facts_of_this_worker(plan, *run_jobs(plan))
    facts = {**ours, "host": "odd", "versions": {**ours["versions"], **versions}}

    def differ(worker: int, part: int | None) -> Answer | None:
        return said(worker, part, "ready", facts=facts) if worker == 1 and part is None else None

    pool = FakeCrew(tmp_path, plan, 2, fault=differ)
    with capture_logs() as logged:
        assert drive(tmp_path, plan, pool).status is Status.DONE
    assert {worker for worker, _ in pool.made} == {0}
    (refused,) = [one for one in logged if one["event"] == "worker.refused"]
    assert refused["worker"] == "worker 1 on odd"
    assert words in refused["reason"]


def test_a_driver_with_other_versions_than_the_process_that_began_the_plan_is_refused(
    tmp_path: Path, plan: Plan
) -> None:
    run_shard(tmp_path, plan, 5, 6)
    (path,) = (tmp_path / "out/_parts").glob(f"*/{FIRST}")
    facts = json.loads(path.read_bytes())
    path.write_text(json.dumps({**facts, "host": "first", "versions": {**facts["versions"], "numpy": "0.0.9"}}))
    pool = FakeCrew(tmp_path, plan, 1)
    ended = drive(tmp_path, plan, pool)
    assert (ended.status, pool.made) == (Status.FAILED, [])
    assert "where this plan was begun: numpy is 0.0.9 there and" in (ended.reason or "")


def test_a_worker_with_another_processor_is_told_of_and_works(tmp_path: Path, plan: Plan) -> None:
    facts = {**facts_of_this_worker(plan, *run_jobs(plan)), "processor": ["avx512f", "odd"]}

    def differ(worker: int, part: int | None) -> Answer | None:
        return said(worker, part, "ready", facts=facts) if part is None else None

    with capture_logs() as logged:
        assert drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1, fault=differ)).status is Status.DONE
    (differs,) = (one for one in logged if one["event"] == "worker.differs")
    assert "avx512f odd" in differs["processor"]
    assert "odd" not in differs["first"]


def test_where_every_worker_refuses_the_plan_the_job_fails_with_the_reason(tmp_path: Path, plan: Plan) -> None:
    def refuse(worker: int, part: int | None) -> Answer | None:
        return said(worker, part, "refused", reason="[moved-fact] The model is not what the plan was made from")

    ended = drive(tmp_path, plan, FakeCrew(tmp_path, plan, 5, fault=refuse))
    assert ended.status is Status.FAILED
    assert "no worker is left: worker 0: [moved-fact] The model" in (ended.reason or "")
    assert "and 2 more" in (ended.reason or "")


@pytest.mark.slow
def test_a_driver_that_is_lost_with_its_state_folder_is_replaced(tmp_path: Path, plan: Plan) -> None:
    def go(_worker: int, part: int | None) -> Answer | None:
        if part == 3:
            raise DriverGoneError
        return None

    with pytest.raises(DriverGoneError):
        drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1, fault=go))
    shutil.rmtree(tmp_path / ".ortdeploy", ignore_errors=True)
    pool = FakeCrew(tmp_path, plan, 1)
    ended = drive(tmp_path, plan, pool)
    assert (ended.status, ended.committed, [part for _, part in pool.made]) == (Status.DONE, ROWS, [3, 4, 5])
    assert report(tmp_path)["rows"]["committed"] == ROWS


def test_a_job_that_is_asked_to_stop_gives_out_nothing_more(tmp_path: Path, plan: Plan) -> None:
    pool = FakeCrew(tmp_path, plan, 1)
    ended = drive(tmp_path, plan, pool, stop=lambda: len(pool.made) >= 2)
    assert ended.status is Status.INTERRUPTED
    assert "the run was asked to stop; 3 of 6 parts are left to do" in (ended.reason or "")
    assert [part for _, part in pool.made] == [0, 1, 2]  # what a worker was making was waited for


def test_failed_rows_of_all_workers_end_the_job_early(tmp_path: Path) -> None:
    save(tmp_path, [-1.0 if row % 8 == 0 else value for row, value in enumerate(VALUES)])
    plan = plan_for(tmp_path, ROWS, max_failed=2)
    pool = FakeCrew(tmp_path, plan, 2, refuse_negative)
    ended = drive(tmp_path, plan, pool)
    assert ended.status is Status.FAILED
    assert "3 of 46 rows failed; max_failed 2 allows 2" in (ended.reason or "")
    assert len(pool.made) < 6
    assert len(failed(tmp_path)) >= 3


def test_parts_of_a_worker_that_hangs_are_made_by_the_others(tmp_path: Path, plan: Plan) -> None:
    class Hanging(FakeCrew):
        def make(self, worker: int, part: int) -> None:
            if worker == 0:
                return  # no answer, ever
            super().make(worker, part)

    pool = Hanging(tmp_path, plan, 2)
    with capture_logs() as logged:
        ended = drive(tmp_path, plan, pool, clock=Clock(OVERDUE_SECONDS / 20))
    assert (ended.status, [row for row, _ in rows(tmp_path)]) == (Status.DONE, list(range(ROWS)))
    (late,) = [one for one in logged if one["event"] == "worker.late"]
    assert (late["part"], late["start"], late["end"]) == (0, 0, 7)


def test_a_job_without_any_worker_ends_after_ten_minutes(tmp_path: Path, plan: Plan) -> None:
    class Full(FakeCrew):
        def begin(self, worker: int) -> None:
            pass

    ended = drive(tmp_path, plan, Full(tmp_path, plan, 2), clock=Clock(30.0))
    assert "no worker has been ready for 10 minutes" in (ended.reason or "")


def test_a_full_disk_is_told_with_the_folder_that_is_on_it(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails names no file."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SharedFolder, "create", full)
    ended = drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1))
    assert (ended.status, ended.reason) == (
        Status.FAILED,
        f"{tmp_path / 'out'}: No space left on device; make room on its disk",
    )


def test_a_worker_that_must_pause_pauses_the_job(tmp_path: Path, plan: Plan) -> None:
    def pause(worker: int, part: int | None) -> Answer | None:
        return said(worker, part, "paused", reason="it is 07:00, and hours: ends at 06:00") if part == 1 else None

    ended = drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1, fault=pause))
    assert ended.status is Status.PAUSED
    assert "hours: ends at 06:00; 4 of 6 parts are left to do" in (ended.reason or "")


def test_what_workers_log_is_logged_with_their_names(tmp_path: Path, plan: Plan) -> None:
    line = json.dumps({"event": "worker.speaks", "level": "info", "seconds": 0.5, "timestamp": "then"})

    def ready(worker: int, part: int | None) -> Answer | None:
        return said(worker, part, "ready", facts=None, log=[line]) if part is None else None

    with capture_logs() as logged:
        drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1, fault=ready))
    (opened,) = [one for one in logged if one["event"] == "worker.speaks"]
    assert (opened["worker"], opened["seconds"], opened["timestamp"]) == ("worker 0", 0.5, "then")


def test_a_bug_of_a_worker_is_a_bug(tmp_path: Path, plan: Plan) -> None:
    def bug(worker: int, part: int | None) -> Answer | None:
        return said(worker, part, "bug", reason="Traceback: …") if part == 1 else None

    with pytest.raises(ChildBugError, match="Traceback"):
        drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1, fault=bug))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"retry": True}, "cannot be made by several workers: retry runs on one machine"),
        ({"input": {"rows": None}}, "known only when it was read"),
        ({"input": {"rerun": (FileState("data.npy", 1, 1),)}}, "data.npy has changed and its rows run again"),
    ],
)
def test_a_job_that_cannot_be_shared_is_refused_before_anybody_is_hired(
    tmp_path: Path, plan: Plan, changes: dict[str, Any], words: str
) -> None:
    ended = drive(tmp_path, changed(plan, **changes), FakeCrew(tmp_path, plan, 1))
    assert (ended.status, words in (ended.reason or "")) == (Status.FAILED, True)


class DriverGoneError(BaseException):
    """Stands for a kill of the driver."""


@settings(max_examples=effort(3, 60), deadline=None)
@given(st.data())
def test_whatever_is_lost_of_workers_answers_and_drivers_every_row_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("schedule")
    save(folder, VALUES)
    plan = plan_for(folder, ROWS)
    failures: dict[int, int] = {}

    def happen(worker: int, part: int | None) -> Answer | None:
        """What comes back: a part may be made although nobody hears of it."""
        event = data.draw(st.sampled_from(["good", "good", "good", "lost", "unheard", "failed", "driver"]))
        if part is None or event == "good":
            return None
        if event == "driver":
            raise DriverGoneError
        failures[part] = failures.get(part, 0) + 1
        if failures[part] > 2:  # the third ends the job by name, which another test is about
            return None
        if event == "unheard":
            pool.answer_of(worker, part)
        return said(worker, part, "failed", reason="no room") if event == "failed" else lost(worker, part)

    for _ in range(data.draw(st.integers(1, 4))):
        pool = FakeCrew(folder, plan, data.draw(st.integers(1, 3)), fault=happen)
        failures.clear()
        with suppress(DriverGoneError):
            drive(folder, plan, pool)
        if data.draw(st.booleans()):
            shutil.rmtree(folder / ".ortdeploy", ignore_errors=True)
    assert drive(folder, plan, FakeCrew(folder, plan, 2)).status is Status.DONE
    assert rows(folder) == [(row, 2 * value) for row, value in enumerate(VALUES)]
    assert not list((folder / "out").rglob(".*"))
