"""A saved plan that several processes run: `apply --shard` and `finish`, as a scheduler calls them."""

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from conftest import MANIFEST, REPOSITORY, Cli, read_rows
from support.shards import BY_ROW, LOOKED_UP, Killed, die_after, die_before, instead, write_rows

from ortdeploy.files.atomic import remove_temporaries
from ortdeploy.jobs import environment_check
from ortdeploy.parts.commit_log import CommitLog
from ortdeploy.planning.remembered import nothing_to_do
from ortdeploy.schemas import schema_text

SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 8")


@pytest.fixture
def plan(cli: Cli, deployment: Path) -> Path:
    (deployment / "m.yaml").write_text(SMALL)
    assert cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json").code == 0
    return deployment / "plan.json"


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "outbox/run").glob("part-*")}


def test_shards_and_finish_leave_what_one_machine_leaves(
    cli: Cli, deployment: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Path(shutil.copytree(deployment, deployment.parent / f"{deployment.name}-alone"))
    assert cli("apply", alone / "m.yaml").code == 0
    assert cli("apply", plan, "--shard", "1/2").code == 0
    refused = cli("apply", deployment / "m.yaml")
    assert refused.code == 1
    assert "error[unfinished-shards]" in refused.words
    before = cli("status", deployment / "m.yaml")
    assert re.search(r"^run +unfinished +0 ", before.out, re.MULTILINE)
    assert "all parts are there" not in before.out
    assert "run: 1 of 3 parts decided: 8 of 20 rows" in before.out
    missing = cli("finish", plan)
    assert missing.code == 1
    assert "run: 2 parts left: 0, 2" in missing.out
    assert "2 of 3 parts are missing: 0 (rows 0 to 7), 2 (rows 16 to 19)." in missing.words
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    monkeypatch.setenv("ORTDEPLOY_SHARDS", "2")
    monkeypatch.setenv("ORTDEPLOY_SHARD", "auto")
    assert cli("apply", plan).code == 0
    monkeypatch.delenv("ORTDEPLOY_SHARD")
    assert "run: all parts are there, and ortdeploy finish puts them into the ledger" in cli("status", deployment).out
    assert cli("finish", plan).code == 0
    assert parts(deployment) == parts(alone)
    report = json.loads((deployment / "outbox/run/_run.json").read_text())
    jsonschema.validate(report, json.loads(schema_text("report")))
    assert {(one["shard"], one["parts"]) for one in report["workers"]} == {("0/2", 2), ("1/2", 1)}
    assert report["invocation"]["arguments"] == ["finish", str(plan)]
    assert report["shares"]["left"] == []
    assert "parts decided" not in cli("status", deployment / "m.yaml").out
    assert cli("verify", deployment / "m.yaml").code == 0
    for again in (("apply", plan, "--shard", "0/1"), ("finish", plan), ("apply", deployment / "m.yaml")):
        done = cli(*again)
        assert (done.code, "nothing to do" in done.out) == (0, True)
    (deployment / "m.yaml").write_text(SMALL.replace("size: 8", "size: 4"))
    assert "  manifest.jobs.run.batch.size: 8 -> 4\n" in cli("diff", deployment / "m.yaml").out


@pytest.mark.quick("parquet-True")
@pytest.mark.parametrize(("kind", "by_row"), [("npz", False), ("parquet", False), ("parquet", True), ("csv", True)])
def test_every_format_is_that_of_one_machine_also_with_padding_failed_rows_and_adapters_by_row(
    cli: Cli, tmp_path: Path, kind: str, *, by_row: bool
) -> None:
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    for folder in (shared, alone):
        folder.mkdir()
        write_rows(folder, by_row=by_row)
        (folder / "m.yaml").write_text((BY_ROW if by_row else LOOKED_UP).replace("FORMAT", kind))
    applied = cli("apply", alone / "m.yaml")
    assert applied.code == 0, applied.words
    plan = shared / "plan.json"
    assert cli("plan", shared / "m.yaml", "--out", plan).code == 0
    for index in (2, 0, 1):
        assert cli("apply", plan, "--shard", f"{index}/3").code == 0
    assert cli("finish", plan).code == 0
    assert (len(parts(shared)), parts(shared) == parts(alone)) == (4, True)
    letters = [
        [json.loads(line)["row"] for line in (folder / "outbox/run/_failed.jsonl").read_text().splitlines()]
        for folder in (shared, alone)
    ]
    assert letters == [[9, 26]] * 2


@pytest.mark.slow
def test_a_shard_that_was_killed_before_its_plan_began_leaves_the_output_to_one_machine(
    cli: Cli, deployment: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, instead(patch, "_claim", die_after), pytest.raises(Killed):
        cli("apply", plan, "--shard", "0/1")
    applied = cli("apply", deployment / "m.yaml")
    assert applied.code == 0, applied.words
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out
    assert [row["row"] for row in read_rows(deployment / "outbox/run")] == list(range(20))


def test_a_run_of_new_files_stops_if_shards_have_begun_them_since_it_was_planned(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would give the numbers that follow those of the earlier parts, and one the name that the other's part has."""
    manifest, plan = deployment / "m.yaml", deployment / "plan.json"
    manifest.write_text(SMALL.replace("data.npy", "data*.npy"))
    assert cli("apply", manifest).code == 0
    np.save(deployment / "data-1.npy", np.ones((20, 4), np.float32))
    assert cli("plan", manifest, "--out", plan).code == 0
    begun: list[int] = []

    def after_shards(folder: Path) -> None:
        begun.append(cli("apply", plan, "--shard", "0/2").code)
        remove_temporaries(folder)

    with monkeypatch.context() as patch:
        patch.setattr("ortdeploy.jobs.resume.remove_temporaries", after_shards)
        stopped = cli("apply", manifest)
    assert (stopped.code, begun, "shards have begun in outbox/run as this run did" in stopped.words) == (1, [0], True)
    assert cli("apply", plan, "--shard", "1/2").code == 0
    finished = cli("finish", plan)
    assert finished.code == 0, finished.words
    assert [row["row"] for row in read_rows(deployment / "outbox/run")] == list(range(40))
    assert cli("verify", manifest).code == 0


def test_a_finish_on_another_machine_at_the_same_moment_finds_all_parts(
    cli: Cli, deployment: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the plan and deletes the decisions, which the slower one was about to read."""
    assert cli("apply", plan, "--shard", "0/1").code == 0

    def quicker(original: Any, log: CommitLog) -> bool:
        is_closed: bool = original(log)
        assert cli("finish", plan, "--state-dir", deployment / "elsewhere").code == 0
        return is_closed

    with instead(monkeypatch, "is_closed", quicker):
        slower = cli("finish", plan)
    assert slower.code == 0, slower.words
    assert cli("verify", deployment / "m.yaml").code == 0


@pytest.mark.slow
def test_status_that_was_shown_before_is_not_what_shards_have_made_since(
    cli: Cli, deployment: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**18))  # all files count as old
    for _ in range(2):
        assert "parts decided" not in cli("status", deployment / "m.yaml").out
    assert cli("apply", plan, "--shard", "0/3").code == 0
    assert "run: 1 of 3 parts decided" in cli("status", deployment / "m.yaml").out
    assert cli("apply", plan, "--shard", "1/3").code == 0
    told = cli("status", deployment / "m.yaml", "--format", "json").json
    assert told["jobs"][0]["shares"]["left"] == [[2, 2]]


def test_new_files_after_a_finished_plan_are_the_next_one_s(cli: Cli, deployment: Path) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(SMALL.replace("data.npy", "data*.npy"))
    for round_ in range(2):
        plan = deployment / f"plan-{round_}.json"
        assert cli("plan", manifest, "--out", plan).code == 0
        for index in (1, 0):
            assert cli("apply", plan, "--shard", f"{index}/2").code == 0
        assert cli("finish", plan).code == 0
        shutil.copy(deployment / "data.npy", deployment / f"data-{round_}.npy")
    rows = read_rows(deployment / "outbox/run")
    assert [row["row"] for row in rows] == list(range(40))
    assert len(list((deployment / "outbox/run/_parts").glob("*/closed.json"))) == 2
    assert cli("apply", manifest).code == 0  # the third file, on one machine
    assert len(read_rows(deployment / "outbox/run")) == 60


@pytest.mark.slow
def test_a_file_that_is_only_touched_after_its_plan_is_not_a_new_one(cli: Cli, deployment: Path) -> None:
    manifest, plan = deployment / "m.yaml", deployment / "plan.json"
    manifest.write_text(SMALL.replace("path: data.npy", "path: data.npy, on_change: append"))
    assert cli("plan", manifest, "--out", plan).code == 0
    assert cli("apply", plan, "--shard", "0/1").code == 0
    assert cli("finish", plan).code == 0
    os.utime(deployment / "data.npy", (1, 1))
    assert "outbox/run is finished" in cli("apply", manifest).words
    assert len(read_rows(deployment / "outbox/run")) == 20


@pytest.mark.slow
@pytest.mark.parametrize("last", ["short", "drop"])
def test_rows_behind_an_unfinished_last_part_get_parts_as_long_as_on_one_machine(
    cli: Cli, deployment: Path, last: str
) -> None:
    manifest, alone = deployment / "m.yaml", deployment.with_name(f"{deployment.name}-alone")
    manifest.write_text(SMALL.replace("data.npy", "data*.npy").replace("size: 8", f"size: 4, last: {last}"))
    np.save(deployment / "data.npy", np.ones((15, 4), np.float32))
    shutil.copytree(deployment, alone)
    for number in range(2):
        plan = deployment / f"plan-{number}.json"
        assert cli("plan", manifest, "--out", plan).code == 0
        for index in (2, 0, 1):
            assert cli("apply", plan, "--shard", f"{index}/3").code == 0
        assert cli("finish", plan).code == cli("apply", alone / "m.yaml").code == 0
        assert parts(deployment) == parts(alone)
        for folder in (deployment, alone):
            np.save(folder / "data-1.npy", np.full((103, 4), 2, np.float32))
    lengths = [one["rows"] for one in json.loads((deployment / "outbox/run/_run.json").read_text())["parts"]]
    assert (lengths[:2], set(lengths[2:-1]), sum(lengths)) == ([8, 7], {8}, 118)


@pytest.mark.slow
def test_a_file_that_arrives_while_shards_run_is_the_next_plan_s(cli: Cli, deployment: Path) -> None:
    """It comes first in the order of names: the rows of the plan keep their numbers."""
    manifest, plan = deployment / "m.yaml", deployment / "plan.json"
    manifest.write_text(SMALL.replace("data.npy", "data*.npy").replace("key: [row]", "key: [row, path]"))
    assert cli("plan", manifest, "--out", plan).code == 0
    assert cli("apply", plan, "--shard", "0/2").code == 0
    shutil.copy(deployment / "data.npy", deployment / "data-0.npy")
    assert cli("apply", plan, "--shard", "1/2").code == 0
    shutil.copy(deployment / "data.npy", deployment / "data-1.npy")
    finished = cli("finish", plan)
    assert finished.code == 0, finished.words
    assert {row["path"] for row in read_rows(deployment / "outbox/run")} == {"data.npy"}
    second = deployment / "second.json"
    assert cli("plan", manifest, "--out", second).code == 0
    assert "nothing to do" in cli("finish", plan).out  # the later files are of no concern to it
    assert cli("apply", second, "--shard", "0/1").code == 0
    assert cli("finish", second).code == 0
    rows = read_rows(deployment / "outbox/run")
    assert [row["row"] for row in rows] == list(range(60))
    assert [row["path"] for row in rows[20::20]] == ["data-0.npy", "data-1.npy"]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["is gone", "changed"])
def test_a_planned_file_that_goes_or_changes_while_shards_run_is_refused(
    cli: Cli, deployment: Path, plan: Path, what: str
) -> None:
    assert cli("apply", plan, "--shard", "0/2").code == 0
    if what == "changed":
        np.save(deployment / "data.npy", np.zeros((20, 4), np.float32))
    else:
        (deployment / "data.npy").unlink()
    for command, code in ((("apply", plan, "--shard", "1/2"), 64), (("finish", plan), 1)):
        refused = cli(*command)
        assert (refused.code, f"data.npy {what}" in refused.words) == (code, True)


def test_a_plan_that_a_worker_refuses_ends_its_shard_with_64(cli: Cli, deployment: Path, plan: Path) -> None:
    os.utime(deployment / "double.onnx")
    assert cli("apply", plan, "--shard", "0/2").code == 0  # another time is no other model
    (deployment / "double.onnx").write_bytes((deployment / "double.onnx").read_bytes() + b"\x00")
    refused = cli("apply", plan, "--shard", "1/2")
    assert (refused.code, len(parts(deployment))) == (64, 2)
    assert "moved-fact" in refused.words


def test_a_job_that_cannot_be_shared_is_told_of_by_plan_and_ends_its_shard_with_64(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL.replace("size: 8", "size: auto"))
    saved = cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json")
    assert (saved.code, "write the size that tune finds" in saved.words) == (0, True)
    refused = cli("apply", deployment / "plan.json", "--shard", "0/2")
    assert (refused.code, "write the size that tune finds" in refused.words) == (64, True)
    assert parts(deployment) == {}


def test_a_plan_that_can_be_shared_is_not_warned_of(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL)
    saved = cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json")
    assert (saved.code, saved.err) == (0, "")


@pytest.mark.slow
def test_a_worker_with_another_version_ends_with_64_and_one_whose_disk_is_full_with_1(
    cli: Cli, deployment: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("apply", plan, "--shard", "0/2").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(environment_check, "package_version", lambda _name: "0.0.9")
        refused = cli("apply", plan, "--shard", "1/2")
    assert (refused.code, "pyarrow is " in refused.words, len(parts(deployment))) == (64, True, 2)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        assert cli("apply", plan, "--shard", "1/2").code == 1
    assert cli("apply", plan, "--shard", "1/2").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("apply", "m.yaml", "--shard", "0/2"), "--shard is for a saved plan"),
        (("apply", "plan.json", "--shard", "2/2"), "counted from 0"),
        (("finish", "m.yaml"), "finish takes one plan file"),
        (("finish", "gone.json"), "there is no plan file "),
        (("apply", "gone.json", "--shard", "0/1"), "there is no plan file "),
    ],
)
@pytest.mark.usefixtures("plan")
def test_wrong_usage_says_what_to_write(
    cli: Cli, deployment: Path, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(deployment)
    wrong = cli(*arguments)
    assert (wrong.code, words in wrong.words) == (64, True)


def test_a_lost_ledger_is_made_again_by_finish(cli: Cli, deployment: Path, plan: Path) -> None:
    cli("apply", plan, "--shard", "0/1")
    cli("finish", plan)
    shutil.rmtree(deployment / ".ortdeploy")
    assert cli("apply", deployment / "m.yaml").code == 1
    assert cli("finish", plan).code == 0
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out


@pytest.mark.slow
@pytest.mark.parametrize("die", [die_before, die_after])
@pytest.mark.parametrize("method", ["close", "tidy"])
def test_a_finish_that_was_killed_as_it_closed_the_plan_is_run_again_and_leaves_nothing_behind(
    cli: Cli, deployment: Path, plan: Path, monkeypatch: pytest.MonkeyPatch, method: str, die: Any
) -> None:
    assert cli("apply", plan, "--shard", "0/1").code == 0
    with instead(monkeypatch, method, die), pytest.raises(Killed):
        cli("finish", plan)
    ended = cli("finish", plan)
    assert ended.code == 0, ended.words
    left = {path.name for path in (deployment / "outbox/run/_parts").rglob("*") if path.is_file()}
    assert left == {"bound.json", "closed.json", "from-0.json"}
    again = cli("apply", deployment / "m.yaml")
    assert (again.code, "nothing to do" in again.out) == (0, True), again.words


def test_manifests_for_clusters_call_what_there_is() -> None:
    cluster = REPOSITORY / "deployments/cluster"
    job = yaml.safe_load((cluster / "indexed-job.yaml").read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"][:2] == ["ortdeploy", "apply"]
    assert container["env"] == [{"name": "ORTDEPLOY_SHARDS", "value": str(job["completions"])}]
    (rule,) = [one for one in job["podFailurePolicy"]["rules"] if one["action"] == "FailIndex"]
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [64]}
    assert "ortdeploy apply plan.json --shard auto" in (cluster / "array.sbatch").read_text()
    templates = yaml.safe_load((cluster / "argo-workflow.yaml").read_text())["spec"]["templates"]
    assert {one["name"] for one in templates} == {"read", "shard", "finish"}
