"""Parts of one plan that several processes make: the bytes of one machine, whatever dies, sleeps or comes twice."""

import errno
import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.forks import CAN_FORK, Fork
from support.jobs import changed, execute, failed, plan_for, report, rows, save, written_as
from support.nfs import Client
from support.shards import Killed, die_before, finish, killed_at_part, run_shard

from ortdeploy.application import finish as finish_module
from ortdeploy.facts.data import FileState
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.jobs.doubt import OwnParts
from ortdeploy.jobs.job_report import JobReport
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.open_plans import CLOSED, open_plans
from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.parts.commit_log import CommitLog
from ortdeploy.parts.file_spans import Spans
from ortdeploy.parts.output_owner import write_marker
from ortdeploy.parts.receipt import Receipt
from ortdeploy.plan.part_table import PlannedPart
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.steps import Plan
from ortdeploy.reports.catalogue import REPORTS
from ortdeploy.results.results import Status
from ortdeploy.schemas import schema_text
from ortdeploy.sessions.evidence import DisagreementError

ROWS = 30  # four parts, the last one short
VALUES = [float(row) for row in range(ROWS)]


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("part-*"))}


def litter(folder: Path) -> list[str]:
    return [path.name for path in (folder / "out").rglob(".*")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The parts that one machine makes."""
    folder = tmp_path_factory.mktemp("alone")
    save(folder, VALUES)
    assert execute(folder, plan_for(folder, ROWS), FakeRuntime(double)).status is Status.DONE
    return parts(folder)


def deployment(folder: Path) -> Plan:
    save(folder, VALUES)
    return plan_for(folder, ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("last", ["short", "pad", "drop"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "npz", "parquet"])
def test_every_format_has_the_bytes_of_one_machine_also_with_rows_that_fail(
    tmp_path: Path, kind: str, last: str
) -> None:
    values = [-1.0 if row in {3, 27} else value for row, value in enumerate(VALUES)]
    made, letters = [], []
    for name in ("alone", "shared"):
        (tmp_path / name).mkdir()
        save(tmp_path / name, values)
        plan = written_as(plan_for(tmp_path / name, ROWS, max_failed=2, last=last), kind)
        if name == "alone":
            execute(tmp_path / name, plan, FakeRuntime(refuse_negative))
        else:
            for index in (1, 0):
                run_shard(tmp_path / name, plan, index, 2, refuse_negative)
            assert finish(tmp_path / name, plan).status is Status.DONE
        made.append(parts(tmp_path / name))
        letters.append([(one["row"], one["code"], one["message"]) for one in failed(tmp_path / name)])
    assert made[0] == made[1]
    assert letters[0] == letters[1]
    assert len(made[0]) == 4


@pytest.mark.process
@pytest.mark.skipif(not CAN_FORK, reason="the processes are forks")
def test_of_many_processes_that_make_every_part_at_the_same_moment_one_wins_each(
    tmp_path: Path, alone: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, decide, barrier = deployment(tmp_path), CommitLog.decide, multiprocessing.Barrier(8, timeout=60)

    def together(log: CommitLog, part: PlannedPart, receipt: Receipt) -> Receipt:
        barrier.wait()
        stands = decide(log, part, receipt)
        barrier.wait()  # nobody publishes and finds the next one decided before all have tried
        if stands is receipt:
            (tmp_path / f"{part.number} won by {os.getpid()}").touch()
        return stands

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "decide", together)
        patch.setattr(CommitLog, "rolled_forward", lambda *_: None)
        processes = [Fork(lambda: run_shard(tmp_path, plan, 0, 1)) for _ in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    assert sorted(int(path.name.split()[0]) for path in tmp_path.glob("* won by *")) == [0, 1, 2, 3]
    assert finish(tmp_path, plan).status is Status.DONE
    assert (parts(tmp_path), litter(tmp_path)) == (alone, [])


@pytest.mark.slow
def test_finish_says_which_parts_are_missing_and_closes_nothing(tmp_path: Path, alone: dict[str, bytes]) -> None:
    plan = deployment(tmp_path)
    run_shard(tmp_path, plan, 0, 2)
    ended = finish(tmp_path, plan)
    assert ended.status is Status.FAILED
    assert "2 of 4 parts are missing: 1 (rows 8 to 15), 3 (rows 24 to 29)" in (ended.reason or "")
    assert open_plans(SharedFolder(tmp_path / "out"))
    run_shard(tmp_path, plan, 1, 2)
    assert finish(tmp_path, plan).status is Status.DONE
    assert finish(tmp_path, plan).committed == ROWS
    assert (parts(tmp_path), open_plans(SharedFolder(tmp_path / "out"))) == (alone, frozenset())


def test_a_shard_after_the_end_has_nothing_to_do(tmp_path: Path) -> None:
    plan = deployment(tmp_path)
    run_shard(tmp_path, plan, 0, 1)
    finish(tmp_path, plan)
    before = {path: path.stat().st_ino for path in (tmp_path / "out").rglob("*")}
    assert run_shard(tmp_path, plan, 0, 1).status is Status.NOTHING_TO_DO
    assert {path: path.stat().st_ino for path in (tmp_path / "out").rglob("*")} == before


@pytest.mark.slow
def test_what_one_machine_has_begun_shards_end(tmp_path: Path, alone: dict[str, bytes]) -> None:
    plan = deployment(tmp_path)
    with killed_at_part(2):
        execute(tmp_path, plan, FakeRuntime(double))
    assert [len(one.parts) for one in read_outputs(tmp_path / ".ortdeploy")] == [2]
    for index in range(3):
        run_shard(tmp_path, plan, index, 3)
    assert finish(tmp_path, plan).status is Status.DONE
    assert parts(tmp_path) == alone


@pytest.mark.slow
@pytest.mark.parametrize("forms", [(), ("html", "prometheus")])
def test_of_parts_that_one_machine_made_before_it_was_killed_finish_writes_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forms: tuple[str, ...]
) -> None:
    plan = changed(deployment(tmp_path), output={"reports": forms})
    with monkeypatch.context() as patch:
        patch.setattr(JobReport, "write", die_before)
        with pytest.raises(Killed):
            execute(tmp_path, plan, FakeRuntime(double))
    assert run_shard(tmp_path, plan, 0, 1).status is Status.NOTHING_TO_DO
    assert finish(tmp_path, plan).status is Status.DONE
    written = report(tmp_path)
    jsonschema.validate(written, json.loads(schema_text("report")))
    assert (written["status"], written["rows"]["committed"], written["session"]) == ("done", ROWS, None)
    assert all((tmp_path / "out" / REPORTS[form].FILE).exists() for form in forms)


def test_the_report_counts_what_each_session_has_run_in_all_parts(tmp_path: Path) -> None:
    plan = changed(deployment(tmp_path), output={"reports": ("html",)})
    for index in range(2):
        run_shard(tmp_path, plan, index, 2)
    assert finish(tmp_path, plan).status is Status.DONE
    written = report(tmp_path)
    assert [one["rows"] for one in written["sessions"]] == [one["rows"] for one in written["workers"]]
    runs = [one["session_run"] for one in written["sessions"]]
    assert sum(one["count"] for one in runs) == written["session_run"]["count"]
    assert sum(one["seconds"] for one in runs) == pytest.approx(written["session_run"]["seconds"], abs=1e-4)
    assert written["stages"]["commit"]["count"] == len(written["parts"])
    page = (tmp_path / "out/_run.html").read_text(encoding="utf-8")
    assert all(f" on {one['worker']}" in page for one in written["sessions"])


def test_finish_keeps_the_report_of_a_run_on_one_machine_that_made_all(tmp_path: Path) -> None:
    plan = deployment(tmp_path)
    execute(tmp_path, plan, FakeRuntime(double))
    told = report(tmp_path)
    assert run_shard(tmp_path, plan, 0, 1).status is Status.NOTHING_TO_DO
    assert finish(tmp_path, plan).status is Status.DONE
    assert report(tmp_path) == told


@pytest.mark.slow
@pytest.mark.parametrize("place", ["ledger.Ledger.commit_part", "shards.finish.write_report"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_finish_that_is_killed_as_it_folds_is_run_again(
    tmp_path: Path, alone: dict[str, bytes], place: str, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    plan = deployment(tmp_path)
    run_shard(tmp_path, plan, 0, 1)
    owner: Any = Ledger if "ledger" in place else finish_module
    name, calls = place.rsplit(".", 1)[-1], []
    original = getattr(owner, name)

    def die_at_the_second_or_only(*arguments: Any, **more: Any) -> None:
        calls.append(name)
        if after or (len(calls) < 2 and owner is Ledger):
            original(*arguments, **more)
        if len(calls) == 2 or owner is finish_module:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, die_at_the_second_or_only)
        with pytest.raises(Killed):
            finish(tmp_path, plan)
    assert finish(tmp_path, plan).status is Status.DONE
    assert (parts(tmp_path), litter(tmp_path), report(tmp_path)["rows"]["committed"]) == (alone, [], ROWS)


def test_a_plan_that_has_not_begun_waits_for_the_run_that_is_at_work(tmp_path: Path) -> None:
    plan = deployment(tmp_path)
    execute(tmp_path, plan, FakeRuntime(double))
    with open_ledger(tmp_path / ".ortdeploy") as ledger, hold_output(tmp_path / ".ortdeploy", "../out"):
        ledger._connection.execute("UPDATE outputs SET status = 'running'")  # noqa: SLF001  as a live run has it
        waits = run_shard(tmp_path, plan, 0, 1)
    assert (waits.status, "another run is at work on out" in (waits.reason or "")) == (Status.FAILED, True)
    assert not (tmp_path / "out/_parts").exists()
    assert run_shard(tmp_path, plan, 0, 1).status is Status.NOTHING_TO_DO


def test_a_run_that_finds_shards_at_work_as_it_begins_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = deployment(tmp_path)

    def after_shards(*arguments: Any) -> None:
        run_shard(tmp_path, plan, 0, 2)
        write_marker(*arguments)

    monkeypatch.setattr("ortdeploy.jobs.resume.write_marker", after_shards)
    ended = execute(tmp_path, plan, FakeRuntime(double))
    assert (ended.status, "shards have begun in out as this run did" in (ended.reason or "")) == (Status.FAILED, True)


def test_failed_rows_and_the_budget_are_judged_over_all_shards(tmp_path: Path) -> None:
    values = [-1.0 if row in {3, 11, 27} else value for row, value in enumerate(VALUES)]
    save(tmp_path, values)
    plan = plan_for(tmp_path, ROWS, max_failed=2)
    for index in range(2):
        assert run_shard(tmp_path, plan, index, 2, refuse_negative).status is Status.DONE
    ended = finish(tmp_path, plan)
    assert (ended.status, ended.committed, ended.failed) == (Status.FAILED, ROWS - 3, 3)
    assert "3 of 30 rows failed; max_failed 2 allows 2" in (ended.reason or "")
    assert [line["row"] for line in failed(tmp_path)] == [3, 11, 27]


def test_a_shard_whose_own_rows_break_the_budget_fails(tmp_path: Path) -> None:
    save(tmp_path, [-1.0] * ROWS)
    plan = plan_for(tmp_path, ROWS, max_failed=9)
    ended = run_shard(tmp_path, plan, 0, 1, refuse_negative)
    assert (ended.status, ended.failed) == (Status.FAILED, 8)
    assert litter(tmp_path) == []


@pytest.mark.parametrize("value", [0.0, 1.0], ids=["the same bytes", "other bytes"])
def test_an_output_that_was_taken_away_begins_anew_whatever_the_ledger_remembers(tmp_path: Path, value: float) -> None:
    save(tmp_path, VALUES)
    execute(tmp_path, plan_for(tmp_path, ROWS), FakeRuntime(double))
    shutil.rmtree(tmp_path / "out")
    values = [one + value for one in VALUES]
    save(tmp_path, values)
    plan = plan_for(tmp_path, ROWS)
    for index in range(2):
        assert run_shard(tmp_path, plan, index, 2).status is Status.DONE
    assert finish(tmp_path, plan).status is Status.DONE
    assert rows(tmp_path) == [(row, 2 * one) for row, one in enumerate(values)]


def test_a_part_that_is_gone_from_what_one_machine_began_is_told(tmp_path: Path) -> None:
    plan = deployment(tmp_path)
    execute(tmp_path, plan, FakeRuntime(double))
    (tmp_path / "out/part-00000001.jsonl").unlink()
    ended = run_shard(tmp_path, plan, 0, 1)
    assert ended.status is Status.FAILED
    assert "out/part-00000001.jsonl was committed and is gone. Restore it" in (ended.reason or "")


def test_another_plan_is_refused_until_the_first_is_finished(tmp_path: Path) -> None:
    plan = deployment(tmp_path)
    run_shard(tmp_path, plan, 0, 2)
    ended = run_shard(tmp_path, plan_for(tmp_path, ROWS, rows_per_part=12), 0, 1)
    assert (ended.status, ended.refused) == (Status.FAILED, True)
    assert "holds parts of another plan" in (ended.reason or "")


def test_input_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    plan = deployment(tmp_path)
    save(tmp_path, [*VALUES, 1.0])
    ended = run_shard(tmp_path, plan, 0, 1)
    assert (ended.status, parts(tmp_path)) == (Status.FAILED, {})
    assert "data.npy is not what it was when the plan was made" in (ended.reason or "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input": {"rows": None}}, "known only when it was read"),
        ({"retry": True}, "retry runs on one machine"),
        ({"output": {"changed": ("model m",)}}, "two deployments"),
        ({"input": {"rerun": (FileState("data.npy", 1, 1),)}}, "data.npy has changed and its rows run again"),
    ],
)
def test_jobs_whose_parts_cannot_be_shared_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    ended = run_shard(tmp_path, changed(deployment(tmp_path), **changes), 0, 2)
    assert (ended.status, ended.refused) == (Status.FAILED, True)
    assert words in (ended.reason or "")


def test_a_batch_size_that_each_process_would_measure_is_refused_before_a_model_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = changed(deployment(tmp_path), batching={"auto": True})
    monkeypatch.setattr(FakeRuntime, "open_session", None)
    assert "write the size that tune finds" in (run_shard(tmp_path, plan, 0, 2).reason or "")


@pytest.mark.quick(0, 1, 3, 6)
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data["part"].update(rows=7), "it is about rows"),
        (lambda data: data["part"].update(committed=9), "do not add up"),
        (lambda data: data["part"].update(file="../../part-00000000.jsonl"), "its file is called"),
        (lambda data: data.update(staged="../../../etc/passwd"), "its bytes wait as"),
        (lambda data: data.update(format_version=2), "format version 2"),
        (lambda data: data.pop("worker"), "worker"),
        (lambda data: data.update(spans=encode(Spans.pack([("data.npy", 0, 9)]), packed=True)), "in another part"),
        (lambda data: data["spans"].update(packed=["AAAA"]), "decompressing"),
        (lambda data: data["part"].update(failed=1, committed=7), "failed or skipped rows"),
    ],
)
def test_a_decision_that_is_damaged_is_told_as_such(tmp_path: Path, spoil: Any, words: str) -> None:
    plan = deployment(tmp_path)
    run_shard(tmp_path, plan, 0, 1)
    (path,) = (tmp_path / "out/_parts").glob("*/part-00000000.json")
    data = json.loads(path.read_bytes())
    spoil(data)
    path.write_text(json.dumps(data))
    ended = finish(tmp_path, plan)
    assert ended.status is Status.FAILED
    assert words in (ended.reason or "")


def test_a_closed_plan_that_was_changed_by_hand_is_damage(tmp_path: Path) -> None:
    plan = deployment(tmp_path)
    run_shard(tmp_path, plan, 0, 1)
    finish(tmp_path, plan)
    (tmp_path / ".ortdeploy/state.db").unlink()
    (path,) = (tmp_path / "out/_parts").glob(f"*/{CLOSED}")
    path.write_text(path.read_text().replace('"committed": 8', '"committed": 7', 1))
    assert "is damaged (its digest does not fit)" in (finish(tmp_path, plan).reason or "")


@pytest.mark.slow
def test_finish_finds_what_this_machine_remembers_not_to_exist(
    tmp_path: Path, alone: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client may say for a minute that there is no such name; a decision is missing only if it still is then."""
    plan = deployment(tmp_path)
    client = Client(monkeypatch)
    assert "no shard of this plan has run" in (finish(tmp_path, plan).reason or "")
    with client.elsewhere():
        run_shard(tmp_path, plan, 0, 2)
    assert "2 of 4 parts are missing" in (finish(tmp_path, plan).reason or "")
    with client.elsewhere():
        run_shard(tmp_path, plan, 1, 2)
    assert finish(tmp_path, plan).status is Status.DONE
    assert parts(tmp_path) == alone


def test_a_decision_whose_answer_was_lost_is_one_s_own(
    tmp_path: Path, alone: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the bytes that were decided on would be deleted as those of the loser."""
    plan, create = deployment(tmp_path), SharedFolder.create

    def without_answer(place: SharedFolder, name: str, data: bytes) -> bool:
        return create(place, name, data) and "/part-" not in name

    monkeypatch.setattr(SharedFolder, "create", without_answer)
    assert run_shard(tmp_path, plan, 0, 1).status is Status.DONE
    assert finish(tmp_path, plan).status is Status.DONE
    assert (parts(tmp_path), litter(tmp_path)) == (alone, [])


@pytest.mark.parametrize("quicker", [(1, 4), (3, 4)], ids=["between", "last"])
def test_progress_counts_the_parts_that_others_were_quicker_with(tmp_path: Path, quicker: tuple[int, int]) -> None:
    plan, observer, others = deployment(tmp_path), Counter(), iter([quicker])

    def model(feeds: Any) -> Any:
        for index, count in others:
            run_shard(tmp_path, plan, index, count)
        return double(feeds)

    run_shard(tmp_path, plan, 0, 1, model, observer)
    assert observer.started == [("run", 0, ROWS)]
    assert observer.seen[-1] == (ROWS, 0)
    assert observer.seen == sorted(observer.seen)


def test_a_part_that_would_exceed_the_disk_that_a_job_may_use_is_not_decided(
    tmp_path: Path, alone: dict[str, bytes]
) -> None:
    limit = sum(len(alone[f"part-0000000{number}.jsonl"]) for number in (0, 1, 3))
    plan = changed(deployment(tmp_path), limits={"disk": limit})
    for index in (1, 3, 0):
        assert run_shard(tmp_path, plan, index, 4).status is Status.DONE
    ended = run_shard(tmp_path, plan, 2, 4)
    assert (ended.status, "part 2 is not committed" in (ended.reason or "")) == (Status.FAILED, True)
    assert sorted(parts(tmp_path)) == [f"part-0000000{number}.jsonl" for number in (0, 1, 3)]


def test_the_size_of_each_part_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, size = [], SharedFolder._size  # noqa: SLF001

    def noted(folder: SharedFolder, name: str) -> int | None:
        asked.append(name)
        return size(folder, name)

    monkeypatch.setattr(SharedFolder, "_size", noted)
    run_shard(tmp_path, changed(deployment(tmp_path), limits={"disk": 10**6}), 0, 1)
    assert asked == [f"part-0000000{number}.jsonl" for number in range(3)]


@pytest.mark.parametrize("decided", [False, True])
def test_a_disk_that_is_full_as_a_part_is_decided_leaves_nothing_undecided(
    tmp_path: Path, alone: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, *, decided: bool
) -> None:
    """It may become full after the decision has its name, when its folder is synced; then the bytes must stay."""
    plan, create = deployment(tmp_path), SharedFolder.create

    def full(place: SharedFolder, name: str, data: bytes) -> bool:
        if decided or "/part-" not in name:
            create(place, name, data)
        if "/part-" in name:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return True

    with monkeypatch.context() as patched:
        patched.setattr(SharedFolder, "create", full)
        ended = run_shard(tmp_path, plan, 0, 1)
    assert (ended.status, "No space left" in (ended.reason or "")) == (Status.FAILED, True)
    assert bool(litter(tmp_path)) == decided
    assert run_shard(tmp_path, plan, 0, 1).status is Status.DONE
    assert finish(tmp_path, plan).status is Status.DONE
    assert (parts(tmp_path), litter(tmp_path)) == (alone, [])


def disagree_from(row: int, since: int | None) -> Any:
    """A model with a comparison that disagrees at a row, after none since another row."""

    def model(feeds: Any) -> Any:
        if (feeds["x"] >= row).any():
            raise DisagreementError(f"row {row} is wrong", since)
        return double(feeds)

    return model


def test_rows_in_doubt_are_named_and_their_plan_is_refused_for_good(tmp_path: Path) -> None:
    plan = deployment(tmp_path)
    ended = run_shard(tmp_path, plan, 0, 2, disagree_from(row=16, since=4))
    said = "Rows 4 to 7 of out were committed or kept after the last comparison that agreed, and may be wrong"
    assert (ended.status, (ended.reason or "").startswith(f"row 16 is wrong. {said}")) == (Status.FAILED, True)
    assert open_plans(SharedFolder(tmp_path / "out")), "so no run on one machine goes on"
    for index in (1, 0):
        other = run_shard(tmp_path, plan, index, 2)
        assert (other.refused, (other.reason or "").startswith(said)) == (True, True), other.reason
    done = finish(tmp_path, plan)
    assert (done.status, (done.reason or "").startswith(said)) == (Status.FAILED, True), done.reason
    assert not read_outputs(tmp_path / ".ortdeploy"), "nothing counts as committed"
    (note,) = (tmp_path / "out/_parts").glob("*/doubt.json")
    note.write_text('{"first": "4"}')
    assert "doubt.json is damaged" in (finish(tmp_path, plan).reason or "")


@pytest.mark.parametrize(("row", "since"), [(16, None), (16, 16), (0, 0)])
def test_a_disagreement_before_any_decision_leaves_no_doubt(tmp_path: Path, row: int, since: int | None) -> None:
    plan = deployment(tmp_path)
    ended = run_shard(tmp_path, plan, 0, 2, disagree_from(row, since))
    assert (ended.status, ended.reason) == (Status.FAILED, f"row {row} is wrong")
    assert run_shard(tmp_path, plan, 0, 1).status is Status.DONE
    assert finish(tmp_path, plan).status is Status.DONE


def test_a_disagreement_after_others_have_finished_the_plan_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = deployment(tmp_path)

    doubted = OwnParts.doubted

    def sleep(*arguments: Any) -> Any:
        assert run_shard(tmp_path, plan, 0, 1).status is Status.DONE
        assert finish(tmp_path, plan).status is Status.DONE
        return doubted(*arguments)

    monkeypatch.setattr(OwnParts, "doubted", sleep)
    ended = run_shard(tmp_path, plan, 0, 2, disagree_from(row=16, since=4))
    assert "Rows 4 to 7 of out were committed" in (ended.reason or "")


def test_finish_of_a_plan_that_no_shard_ran_says_so(tmp_path: Path) -> None:
    assert "no shard of this plan has run" in (finish(tmp_path, deployment(tmp_path)).reason or "")
