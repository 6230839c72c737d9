"""A ledger that is lost is made again from what lies beside the parts, or not at all: never a false one."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, Cli, read_rows
from support import s3
from support.fakes import FakeRuntime, double, refuse_negative
from support.jobs import changed, execute, failed, plan_for, report, save
from support.shards import Killed, finish, killed_at_part, on_store, run_shard

from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.jobs.rebuild import AHEAD, COPY
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import read_ledger, read_outputs
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.results.results import Status

ROWS = 30  # four parts, the last one short
VALUES = [float(row) for row in range(ROWS)]
SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 8").replace("data.npy", "data*.npy")


def lose(folder: Path) -> OutputRecord:
    """Lose the ledger; return what it knew."""
    (record,) = (one for one in read_outputs(folder / ".ortdeploy"))
    shutil.rmtree(folder / ".ortdeploy")
    return record


def known(folder: Path) -> OutputRecord:
    (record,) = read_outputs(folder / ".ortdeploy")
    return record


def retried(folder: Path, **options: Any) -> None:
    """A plan that shards have made with a failed row, which a retry has recovered since."""
    save(folder, [-1.0 if row == 11 else value for row, value in enumerate(VALUES)])
    plan = changed(plan_for(folder, ROWS, max_failed=2), output=options)
    run_shard(folder, plan, 0, 1, refuse_negative)
    assert finish(folder, plan).failed == 1
    again = execute(folder, changed(plan, retry=True), FakeRuntime(double))
    assert (again.status, again.committed, again.failed) == (Status.DONE, ROWS, 0)


@pytest.mark.parametrize("options", [{}, {"removable": True}], ids=["in its part", "beside it"])
def test_what_a_retry_has_recovered_is_known_again(tmp_path: Path, options: dict[str, Any]) -> None:
    retried(tmp_path, **options)
    before = lose(tmp_path)
    plan = changed(plan_for(tmp_path, ROWS, max_failed=2), output=options)
    ended = finish(tmp_path, plan)
    assert (ended.status, ended.committed, ended.failed) == (Status.DONE, ROWS, 0)
    assert known(tmp_path).parts == before.parts
    assert (report(tmp_path)["rows"]["committed"], failed(tmp_path)) == (ROWS, [])
    with read_ledger(tmp_path / ".ortdeploy") as ledger:
        assert ledger is not None
        ledger.check_inputs("../out")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_retry_that_was_killed_is_told_and_nothing_false_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    save(tmp_path, [-1.0 if row == 11 else value for row, value in enumerate(VALUES)])
    plan, end = plan_for(tmp_path, ROWS, max_failed=2), Ledger.end_rewrite
    run_shard(tmp_path, plan, 0, 1, refuse_negative)
    finish(tmp_path, plan)

    def die(*arguments: Any) -> None:
        if after:
            end(*arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "end_rewrite", die)
        with pytest.raises(Killed):
            execute(tmp_path, changed(plan, retry=True), FakeRuntime(double))
    told, letters = (tmp_path / "out/_run.json").read_bytes(), failed(tmp_path)
    state = shutil.copytree(tmp_path / ".ortdeploy", tmp_path / "kept")
    lose(tmp_path)
    ended = finish(tmp_path, plan)
    assert ended.status is Status.FAILED
    assert "was ended before it could note that beside the parts" in (ended.reason or "")
    assert (read_outputs(tmp_path / ".ortdeploy"), (tmp_path / "out/_run.json").read_bytes()) == ((), told)
    assert failed(tmp_path) == letters
    shutil.rmtree(tmp_path / ".ortdeploy")
    shutil.move(state, tmp_path / ".ortdeploy")  # with the ledger, the next retry completes it and notes it
    execute(tmp_path, changed(plan, retry=True), FakeRuntime(double))
    before = lose(tmp_path)
    assert finish(tmp_path, plan).committed == ROWS
    assert known(tmp_path).parts == before.parts


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_bytes(path.read_bytes()[:-2] + b" \n"), "is not what was written"),
    ],
)
def test_a_part_that_is_not_what_was_written_makes_no_ledger(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    save(tmp_path, VALUES)
    plan = plan_for(tmp_path, ROWS)
    run_shard(tmp_path, plan, 0, 1)
    finish(tmp_path, plan)
    lose(tmp_path)
    damage(tmp_path / "out/part-00000003.jsonl")
    ended = finish(tmp_path, plan)
    assert (ended.status, read_outputs(tmp_path / ".ortdeploy")) == (Status.FAILED, ())
    assert f"out/part-00000003.jsonl {words}, so the lost ledger is not made again" in (ended.reason or "")


def test_a_run_on_one_machine_that_cannot_note_itself_beside_the_parts_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, VALUES)
    plan = plan_for(tmp_path, ROWS)
    run_shard(tmp_path, plan, 0, 1)
    assert finish(tmp_path, plan).status is Status.DONE

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SharedFolder, "create", full)
    ended = execute(tmp_path, plan, FakeRuntime(double))
    assert (ended.status, ended.reason) == (
        Status.FAILED,
        f"{tmp_path / 'out'}: No space left on device; make room on its disk",
    )


def test_what_one_machine_has_begun_is_known_again(tmp_path: Path) -> None:
    save(tmp_path, VALUES)
    plan = plan_for(tmp_path, ROWS)
    with killed_at_part(2):
        execute(tmp_path, plan, FakeRuntime(double))
    run_shard(tmp_path, plan, 0, 1)
    finish(tmp_path, plan)
    assert (tmp_path / "out" / COPY).exists()
    before = lose(tmp_path)
    assert finish(tmp_path, plan).committed == ROWS
    assert known(tmp_path).parts == before.parts
    (tmp_path / "out" / COPY).unlink()
    lose(tmp_path)
    ended = finish(tmp_path, plan)
    assert "nothing beside the parts says what is in the parts 0 to 0" in (ended.reason or "")
    assert read_outputs(tmp_path / ".ortdeploy") == ()


def test_on_a_store_too_a_part_is_compared_and_the_ledger_made_again(tmp_path: Path, store: Any) -> None:
    save(tmp_path, VALUES)
    plan = on_store(plan_for(tmp_path, ROWS), "memory://bucket/out")
    run_shard(tmp_path, plan, 0, 1)
    finish(tmp_path, plan)
    before = lose(tmp_path)
    assert finish(tmp_path, plan).committed == ROWS
    assert known(tmp_path).parts == before.parts
    lose(tmp_path)
    store.pipe_file("/bucket/out/part-00000001.jsonl", b"x")
    assert "part-00000001.jsonl is not what was written" in (finish(tmp_path, plan).reason or "")


def rounds(cli: Cli, folder: Path, count: int) -> list[Path]:
    """Plans for files that come one after the other, each made by shards and finished."""
    plans = []
    for number in range(count):
        plans.append(folder / f"plan-{number}.json")
        assert cli("plan", folder / "m.yaml", "--out", plans[-1]).code == 0
        for index in (1, 0):
            assert cli("apply", plans[-1], "--shard", f"{index}/2").code == 0
        done = cli("finish", plans[-1])
        assert done.code == 0, done.words
        if number + 1 < count:
            np.save(folder / f"data-{number}.npy", np.full((20, 4), number, np.float32))
    return plans


@pytest.mark.slow
@pytest.mark.parametrize("with_plan", [0, 2], ids=["first", "last"])
def test_several_plans_are_folded_in_their_order(cli: Cli, deployment: Path, with_plan: int) -> None:
    """Any plan of the output will do: that of the first files is no longer one that could be planned again."""
    (deployment / "m.yaml").write_text(SMALL)
    plans = rounds(cli, deployment, 3)
    before = lose(deployment)
    finished = cli("finish", plans[with_plan])
    assert finished.code == 0, finished.words
    after = known(deployment)
    assert (after.parts, after.rows, after.status) == (before.parts, 60, "done")
    assert cli("verify", deployment / "m.yaml").code == 0
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out
    np.save(deployment / "data-z.npy", np.zeros((20, 4), np.float32))
    assert cli("apply", deployment / "m.yaml").code == 0  # on one machine: only the ledger, and the copy, know that
    lose(deployment)
    assert cli("finish", plans[1]).code == 0
    assert known(deployment).rows == len(read_rows(deployment / "outbox/run")) == 80
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["by shards", "on one machine"])
def test_an_open_plan_after_a_finished_one_goes_on_without_its_ledger(cli: Cli, deployment: Path, begun: str) -> None:
    (deployment / "m.yaml").write_text(SMALL)
    if begun == "on one machine":
        with killed_at_part(1):
            cli("apply", deployment / "m.yaml")
    rounds(cli, deployment, 1)
    np.save(deployment / "data-1.npy", np.ones((20, 4), np.float32))
    plan = deployment / "open.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    assert cli("apply", plan, "--shard", "0/2").code == 0
    lose(deployment)
    unfinished = cli("finish", plan)
    assert (unfinished.code, "2 of 3 parts are missing: 3 (rows 20 to 27), 5" in unfinished.words) == (1, True), (
        unfinished.words
    )
    assert cli("apply", plan, "--shard", "1/2").code == 0
    assert cli("finish", plan).code == 0
    assert [row["row"] for row in read_rows(deployment / "outbox/run")] == list(range(40))


@pytest.mark.slow
def test_a_finish_that_cannot_make_the_ledger_again_changes_nothing(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL)
    plan = rounds(cli, deployment, 2)[-1]
    lose(deployment)
    (deployment / "outbox/run/part-00000001.jsonl").unlink()
    told = (deployment / "outbox/run/_run.json").read_bytes()
    refused = cli("finish", plan)
    assert (refused.code, "part-00000001.jsonl is gone, so the lost ledger" in refused.words) == (1, True)
    assert (deployment / "outbox/run/_run.json").read_bytes() == told
    assert read_outputs(deployment / ".ortdeploy") == ()


def test_an_output_that_lies_elsewhere_by_a_link_is_left_to_planning(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL)
    (plan,) = rounds(cli, deployment, 1)
    lose(deployment)
    shutil.move(deployment / "outbox", deployment.with_name("elsewhere"))
    (deployment / "outbox").symlink_to(deployment.with_name("elsewhere"))
    refused = cli("finish", plan)
    assert (refused.code, "link out of the manifest's folder tree" in refused.words) == (1, True), refused.words
    assert not (deployment / ".ortdeploy/state.db").exists()


@pytest.mark.process
def test_several_plans_on_a_store_are_folded_too(cli: Cli, deployment: Path, bucket: s3.Store) -> None:
    (deployment / "m.yaml").write_text(SMALL.replace("outbox/run", f'"{bucket.url("out")}"'))
    plans = rounds(cli, deployment, 2)
    before = lose(deployment)
    assert cli("finish", plans[1]).code == 0
    assert known(deployment).parts == before.parts
    rows = [json.loads(line)["row"] for part in bucket.parts("out").values() for line in part.splitlines()]
    assert rows == list(range(40))


def test_a_run_of_one_machine_leaves_nothing_beside_parts_that_no_shard_made(tmp_path: Path) -> None:
    save(tmp_path, VALUES)
    execute(tmp_path, plan_for(tmp_path, ROWS), FakeRuntime(double))
    assert not (tmp_path / "out" / COPY).parent.exists()
    assert not (tmp_path / "out" / AHEAD).exists()
