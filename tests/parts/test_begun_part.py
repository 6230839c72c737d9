"""What is through of a part when a run ends early is kept: the next run goes on behind it, and nothing is lost but time."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from conftest import Cli
from msgspec.structs import replace
from onnx import TensorProto, helper
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.jobs import (
    Killed,
    changed,
    execute,
    failed,
    plan_for,
    plan_with_sessions,
    report,
    retrying,
    rows,
    save,
)
from support.logs import capture_logs
from support.models import Shape, save_model

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.files.atomic import Hashing
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.results.results import JobResult, Status
from ortdeploy.schemas import load_schema
from ortdeploy.sinks import jsonl
from ortdeploy.views import json as json_view
from ortdeploy.views import text
from ortdeploy.views.status import render_status
from ortdeploy.views.status_model import JobStatus

ROWS = 40


@contextmanager
def ending_after(blocks: int) -> Iterator[None]:
    """Let a job end when so many blocks are through."""
    seen: list[int] = []

    def end(_: MemoryWatch) -> bool:
        seen.append(1)
        if len(seen) >= blocks:
            raise OrtdeployError("enough")
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryWatch, "is_near", end)
        yield


def job(folder: Path, bad: tuple[int, ...] = (), **settings: Any) -> Plan:
    save(folder, [-1.0 - row if row in bad else float(row) for row in range(ROWS)])
    return plan_for(folder, ROWS, **({"rows_per_part": ROWS, "max_failed": 9} | settings))


def interrupted(folder: Path, plan: Plan, blocks: int = 1) -> JobResult:
    with ending_after(blocks):
        return execute(folder, plan, FakeRuntime(refuse_negative))


def begun_file(folder: Path) -> Path:
    (path,) = (folder / "out").glob(".*")
    return path


def ran(runtime: FakeRuntime) -> list[float]:
    return [float(row[0]) for session in runtime.sessions for batch in session.batches for row in batch["x"]]


def test_the_next_run_goes_on_behind_what_was_through(tmp_path: Path) -> None:
    plan = job(tmp_path, bad=(1,))
    result = interrupted(tmp_path, plan)
    assert (result.status, result.committed, result.failed, result.kept) == (Status.FAILED, 0, 1, 4)
    assert begun_file(tmp_path).name == ".part-00000000.jsonl.4.begun"
    assert not list((tmp_path / "out").glob("part-*"))
    assert [entry["row"] for entry in failed(tmp_path)] == [1]
    found = report(tmp_path)
    jsonschema.validate(found, load_schema("report"))
    assert found["rows"] == {"input": 0, "committed": 0, "failed": 0, "skipped": 0}
    assert (found["kept"]["rows"], found["kept"]["committed"], found["kept"]["failed"]) == (4, 3, 1)
    runtime, observer = FakeRuntime(refuse_negative), Counter()
    with capture_logs() as events:
        result = execute(tmp_path, plan, runtime, observer=observer)
    assert (result.status, result.committed, result.failed, result.kept) == (Status.DONE, 39, 1, 0)
    assert ran(runtime) == [float(row) for row in range(4, ROWS)]
    assert observer.started == [("run", 4, ROWS)]
    assert [event["done"] for event in events if event["event"] == "job.started"] == [4]
    assert [entry["row"] for entry in failed(tmp_path)] == [1]
    assert [row for row, _ in rows(tmp_path)] == [row for row in range(ROWS) if row != 1]
    assert not list((tmp_path / "out").glob(".*"))
    assert report(tmp_path)["kept"] is None
    assert read_outputs(tmp_path / ".ortdeploy")[0].begun is None


def test_batches_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    sizes = []
    for name, interruptions in (("whole", 0), ("interrupted", 5)):
        (tmp_path / name).mkdir()
        plan = job(tmp_path / name, size=3, last="pad")
        runtime = FakeRuntime(double)
        for _ in range(interruptions):
            with ending_after(1):
                assert execute(tmp_path / name, plan, runtime).status is Status.FAILED
        assert execute(tmp_path / name, plan, runtime).status is Status.DONE
        sizes.append([batch["x"].tolist() for session in runtime.sessions for batch in session.batches])
    assert sizes[0] == [batch for number, batch in enumerate(sizes[1]) if batch not in sizes[1][:number]]


@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "folder"])
def test_a_damaged_one_is_told_once_and_its_rows_run_again(tmp_path: Path, how: str) -> None:
    plan = job(tmp_path, bad=(1,), max_failed=1)
    interrupted(tmp_path, plan)
    path = begun_file(tmp_path)
    content = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "gone":
        path.write_bytes(content[:-1] if how == "cut" else content.replace(b"0", b"1"))
    with capture_logs() as events:
        result = execute(tmp_path, plan, FakeRuntime(refuse_negative))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 39, 1), result.reason
    (event,) = (event for event in events if event["event"] == "part.begun_again")
    assert (event["part"], event["rows"]) == (0, 4)
    assert path.name in event["reason"]
    assert [entry["row"] for entry in failed(tmp_path)] == [1]


def test_failed_rows_count_once_over_interruptions(tmp_path: Path) -> None:
    plan = job(tmp_path, bad=(2, 3, 4), max_failed=3, errors={"max_consecutive": 9})
    for _ in range(3):
        interrupted(tmp_path, plan)
    assert (read_outputs(tmp_path / ".ortdeploy")[0].failed, len(failed(tmp_path))) == (3, 3)
    assert execute(tmp_path, plan, FakeRuntime(refuse_negative)).status is Status.DONE


def test_rows_that_fail_one_after_the_other_count_over_what_was_kept(tmp_path: Path) -> None:
    plan = changed(job(tmp_path, bad=(2, 3, 4)), errors={"max_consecutive": 2})
    assert interrupted(tmp_path, plan).kept == 4
    result = execute(tmp_path, plan, FakeRuntime(refuse_negative))
    assert "3 rows failed one after the other" in (result.reason or "")
    assert (result.kept, result.failed) == (4, 3)
    assert [entry["row"] for entry in failed(tmp_path)] == [2, 3, 4]


def test_a_part_none_of_whose_rows_gave_a_result_is_kept_without_a_file(tmp_path: Path) -> None:
    plan = job(tmp_path, bad=(0, 1, 2, 3), max_failed=4)
    result = interrupted(tmp_path, plan)
    assert (result.kept, result.failed) == (4, 4)
    assert not list((tmp_path / "out").glob(".*"))
    runtime = FakeRuntime(refuse_negative)
    assert execute(tmp_path, plan, runtime).status is Status.DONE
    assert min(ran(runtime)) == 4


def test_a_disk_that_is_full_while_it_is_kept_does_not_hide_why_the_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = job(tmp_path)
    interrupted(tmp_path, plan)

    def full(_: Hashing) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Hashing, "written", full)
        with capture_logs() as events:
            result = interrupted(tmp_path, plan)
    assert (result.reason, result.kept) == ("enough", 4), "what the run before has kept is still there"
    assert [event["event"] for event in events if event["event"].startswith("part.")] == ["part.not_kept"]
    assert begun_file(tmp_path).name == ".part-00000000.jsonl.4.begun"
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE


def test_a_block_that_cannot_be_written_leaves_what_was_kept_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = job(tmp_path)
    interrupted(tmp_path, plan)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(jsonl._JsonlSink, "write", full)  # noqa: SLF001  a disk does it
        result = execute(tmp_path, plan, FakeRuntime(double))
    assert "No space left" in (result.reason or "")
    assert result.kept == 4
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))


def test_more_than_the_output_may_take_on_disk_is_not_kept(tmp_path: Path) -> None:
    plan = changed(job(tmp_path), limits={"disk": 10})
    with capture_logs() as events:
        assert interrupted(tmp_path, plan).kept == 0
    (event,) = (event for event in events if event["event"] == "part.not_kept")
    assert "the output would take" in event["reason"]
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.slow
def test_retry_leaves_it_alone(tmp_path: Path) -> None:
    plan = job(tmp_path, bad=(1, 9), rows_per_part=8)
    assert interrupted(tmp_path, plan, 2).committed == 7
    assert interrupted(tmp_path, plan).kept == 4
    before = read_outputs(tmp_path / ".ortdeploy")[0].begun
    assert before is not None
    assert (before.part.start, before.part.failed) == (8, 1)
    result = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (result.status, result.committed, result.failed, result.kept) == (Status.DONE, 8, 1, 4)
    assert read_outputs(tmp_path / ".ortdeploy")[0].begun == before
    assert [entry["row"] for entry in failed(tmp_path)] == [9]
    assert report(tmp_path)["kept"]["rows"] == 4
    assert execute(tmp_path, plan, FakeRuntime(refuse_negative)).failed == 1
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == ROWS
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))


def test_it_is_put_aside_with_its_output(tmp_path: Path) -> None:
    plan = job(tmp_path)
    interrupted(tmp_path, plan)
    kept = begun_file(tmp_path).read_bytes()
    new = changed(plan, output={"replaces": "r1"}, identity={"model": "another"})
    runtime = FakeRuntime(double)
    assert execute(tmp_path, new, runtime).status is Status.DONE
    assert min(ran(runtime)) == 0
    (aside,) = tmp_path.glob("out.*")
    assert (aside / ".part-00000000.jsonl.4.begun").read_bytes() == kept
    records = {record.output: record for record in read_outputs(tmp_path / ".ortdeploy")}
    assert {name for name, record in records.items() if record.begun} == {f"../{aside.name}"}


def test_another_plan_does_not_touch_it(tmp_path: Path) -> None:
    plan = job(tmp_path)
    interrupted(tmp_path, plan)
    result = execute(tmp_path, changed(plan, identity={"model": "another"}), FakeRuntime(double))
    assert "another plan" in (result.reason or "")
    assert begun_file(tmp_path).exists()
    assert interrupted(tmp_path, plan).kept == 8


def test_a_folder_that_was_taken_away_is_forgotten_with_it(tmp_path: Path) -> None:
    plan = job(tmp_path)
    interrupted(tmp_path, plan)
    shutil.rmtree(tmp_path / "out")
    runtime = FakeRuntime(double)
    assert execute(tmp_path, plan, runtime).status is Status.DONE
    assert min(ran(runtime)) == 0


def test_a_folder_that_was_taken_away_is_forgotten_before_another_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a kill between the two would leave an empty folder of which the ledger says that it holds every row."""
    plan = job(tmp_path)
    execute(tmp_path, plan, FakeRuntime(double))
    shutil.rmtree(tmp_path / "out")

    def die(_: Ledger, *_arguments: Any, **_options: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "begin", die)
        with pytest.raises(Killed):
            execute(tmp_path, plan, FakeRuntime(double))
    assert (tmp_path / "out").exists()
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))


@pytest.mark.parametrize("after", [False, True])
def test_a_file_that_a_kill_has_left_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Killed before the ledger knows the part, or after that: the hidden file is taken up, or it goes."""
    plan = job(tmp_path, rows_per_part=8)
    interrupted(tmp_path, plan)
    real = Ledger.commit_part

    def die(self: Ledger, *arguments: Any, **options: Any) -> None:
        if after:
            real(self, *arguments, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit_part", die)
        with pytest.raises(Killed):
            execute(tmp_path, plan, FakeRuntime(double))
    assert begun_file(tmp_path).exists()
    assert (read_outputs(tmp_path / ".ortdeploy")[0].begun is None) is after
    noting, noted = (tmp_path / f".ortdeploy/live/.note.json.{number}.partial" for number in range(2))
    noting.touch()  # by another run, in this moment
    noted.touch()
    os.utime(noted, (0, 0))
    runtime = FakeRuntime(double)
    assert execute(tmp_path, plan, runtime).status is Status.DONE
    assert (noting.exists(), noted.exists()) == (True, False)
    assert min(ran(runtime)) == (8 if after else 4)
    assert not list((tmp_path / "out").glob(".*"))
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))


@pytest.mark.slow
def test_what_ends_within_a_batch_is_not_gone_on_with_where_more_rows_came(tmp_path: Path) -> None:
    """A run that ends after its input did: with other files, the last rows belong to other batches."""
    short = changed(job(tmp_path, rows_per_part=80), input={"rows": 38})
    save(tmp_path, range(38))
    states = plan_for(tmp_path, 38).steps[-1]
    assert isinstance(states, RunJob)
    short = changed(short, input={"files": states.input.files})
    assert [interrupted(tmp_path, short).kept for _ in range(10)][-1] == 38
    plan = job(tmp_path, rows_per_part=80)
    with capture_logs() as events:
        assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert [event["rows"] for event in events if event["event"] == "part.begun_again"] == [38]
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))


@pytest.mark.slow
def test_all_rows_may_be_kept_when_nothing_is_left_but_the_commit(tmp_path: Path) -> None:
    plan = job(tmp_path, rows_per_part=80)  # not yet at the border, where the part would be whole
    kept = [interrupted(tmp_path, plan).kept for _ in range(ROWS // 4)]
    assert kept == list(range(4, ROWS + 1, 4))
    runtime = FakeRuntime(double)
    assert execute(tmp_path, plan, runtime).status is Status.DONE
    assert ran(runtime) == []
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))


@pytest.mark.slow
def test_a_session_that_takes_over_goes_on_and_the_origin_names_both(tmp_path: Path) -> None:
    save(tmp_path, range(20))
    calls: list[int] = []

    def fail_once(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if (feeds["x"] == 12).any() and not calls:
            calls.append(1)
            raise ProviderFailedError("the device is gone")
        return double(feeds)

    runtime = FakeRuntime(fail_once)
    assert execute(tmp_path, plan_with_sessions(tmp_path, 20, rows_per_part=20), runtime).status is Status.DONE
    again = [float(row[0]) for batch in runtime.sessions[1].batches for row in batch["x"]]
    assert min(again) >= 4
    found = report(tmp_path)
    jsonschema.validate(found, load_schema("report"))
    origin = found["provenance"][found["parts"][0]["provenance"]]
    first = found["provenance"][origin["begun_with"]]
    assert (list(first["sessions"]), list(origin["sessions"])) == (["npu"], ["gpu"])


def test_one_origin_is_named_once_however_often_a_part_was_begun(tmp_path: Path) -> None:
    plan = job(tmp_path)
    for _ in range(3):
        interrupted(tmp_path, plan)
    execute(tmp_path, plan, FakeRuntime(double))
    (origin,) = report(tmp_path)["provenance"].values()
    assert "begun_with" not in origin


def test_status_and_results_say_how_many_rows_are_kept(tmp_path: Path) -> None:
    result = interrupted(tmp_path, job(tmp_path))
    shown = text.render_results([result], color=False)
    assert "0 rows committed, 0 failed, 0 skipped; 4 more rows are kept for the next run. enough." in shown
    assert "1 more row is kept" in text.render_results([replace(result, kept=1)], color=False)
    assert "kept" not in text.render_results([replace(result, kept=0)], color=False)
    assert '"kept": 4' in json_view.render_apply([], [], [result])
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    status = JobStatus(job="run", output="out", record=record)
    assert "run: 4 more rows are kept for the next run" in render_status([status])
    assert '"kept": 4' in json_view.render_status([status])
    going_on = replace(status, record=replace(record, status="running"))
    assert "kept" not in render_status([going_on])


def test_the_ledger_keeps_the_last_of_an_output(tmp_path: Path) -> None:
    plan = job(tmp_path, bad=(1,))
    for kept in (4, 8):
        assert interrupted(tmp_path, plan).kept == kept
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        record = ledger.output("../out")
        assert record is not None
        assert record.begun is not None
        assert record.begun.end == 8
        assert {row: one.attempts for row, one in ledger.failed_of_begun("../out", record.begun).items()} == {1: 1}
    assert begun_file(tmp_path).name == ".part-00000000.jsonl.8.begun"


def picture_job(folder: Path, cli: Cli, *, ends_early: bool) -> dict[str, bytes]:
    """Run a job that writes pictures, in one part, perhaps in two runs; return the files that it leaves."""
    folder.mkdir()
    pixels: tuple[int, Shape] = (TensorProto.UINT8, ["batch", 4, 4, 3])
    save_model(folder / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": pixels}, {"y": pixels})
    np.save(folder / "data.npy", np.arange(24 * 48, dtype=np.uint8).reshape(24, 4, 4, 3))
    (folder / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  run:\n    model: m\n    input: {path: data.npy}\n"
        "    batch: {size: 4}\n    output: {path: out, format: jsonl, images: [y], rows_per_part: 24}\n"
    )
    if ends_early:
        with ending_after(1):  # later blocks may be larger
            assert cli("apply", folder / "m.yaml", "-q").code == 1
        assert begun_file(folder).name.endswith(".begun")
        assert len(list((folder / "out/images").iterdir())) < 24
    assert cli("apply", folder / "m.yaml", "-q").code == 0
    found = (path for path in sorted((folder / "out").rglob("*")) if path.is_file() and path.name != "_run.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.mark.slow
def test_pictures_of_a_begun_part_are_those_of_one_that_was_not_interrupted(cli: Cli, tmp_path: Path) -> None:
    whole = picture_job(tmp_path / "whole", cli, ends_early=False)
    assert len([name for name in whole if name.endswith(".png")]) == 24
    assert picture_job(tmp_path / "again", cli, ends_early=True) == whole
