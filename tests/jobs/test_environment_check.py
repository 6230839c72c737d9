"""Workers of one plan have the versions of the first; another processor is told of, in the log and in the report."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.jobs import plan_for, report, save
from support.logs import capture_logs
from support.shards import finish, run_shard

from ortdeploy.jobs.environment_check import FIRST, facts_of_this_worker
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import OpenSession, Plan
from ortdeploy.plan.thread_layout import BY_RULE, ThreadLayout
from ortdeploy.results.results import JobResult, Status
from ortdeploy.views.text import render_results

ROWS = 30  # four parts


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    save(tmp_path, range(ROWS))
    return plan_for(tmp_path, ROWS)


def begun_elsewhere(folder: Path, plan: Plan, **changes: Any) -> Path:
    """Let the plan be begun by a worker that differs from this one in these facts; return the file that says so."""
    ours = facts_of_this_worker(plan, *run_jobs(plan))
    run_shard(folder, plan, 3, 4)
    (path,) = (folder / "out/_parts").glob(f"*/{FIRST}")
    assert json.loads(path.read_bytes()) == {**ours, "made_before": 0}
    versions = {**ours["versions"], **changes.pop("versions", {})}
    path.write_text(json.dumps({**ours, "host": "first", "versions": versions, **changes}))
    return path


@pytest.mark.parametrize("package", ["ortdeploy", "onnxruntime", "numpy", "pyarrow", "python", "architecture"])
def test_a_shard_with_another_version_than_the_first_makes_no_part(tmp_path: Path, plan: Plan, package: str) -> None:
    begun_elsewhere(tmp_path, plan, versions={package: "0.0.9"})
    refused = run_shard(tmp_path, plan, 0, 1)
    assert (refused.status, refused.refused, refused.committed) == (Status.FAILED, True, 0)
    assert "parts would not be those of first, where this plan was begun" in (refused.reason or "")
    assert f"{package} is 0.0.9 there and " in (refused.reason or "")


def in_words(result: JobResult) -> str:
    return render_results([result], color=False)


@pytest.mark.parametrize("differs", [{"processor": ["avx512f", "odd"]}, {"cores": 1000}])
def test_another_processor_is_told_of_by_its_shard_and_in_the_report(
    tmp_path: Path, plan: Plan, differs: dict[str, Any]
) -> None:
    path = begun_elsewhere(tmp_path, plan, **differs)
    before = path.read_bytes()
    with capture_logs() as logged:
        assert run_shard(tmp_path, plan, 0, 4).status is Status.DONE
    (told,) = (one for one in logged if one["event"] == "worker.differs")
    assert told["processor"] != told["first"]
    assert path.read_bytes() == before
    assert "processors differ" not in in_words(finish(tmp_path, plan))  # both parts were made here
    (decision,) = (tmp_path / "out/_parts").glob("*/part-00000003.json")
    receipt = json.loads(decision.read_bytes())
    receipt["worker"]["processor"] = told["first"]
    decision.write_text(json.dumps(receipt))
    run_shard(tmp_path, plan, 0, 1)
    with capture_logs() as logged:
        done = finish(tmp_path, plan)
    made = {told["processor"]: 3, told["first"]: 1}
    assert [one["parts"] for one in logged if one["event"] == "plan.mixed_workers"] == [made]
    mixed = report(tmp_path)["shares"]["mixed_workers"]
    assert {one["processor"]: one["parts"] for one in mixed} == made
    assert f"processors differ, and so may the last digits of results: 3 parts on {told['processor']}" in in_words(done)


def test_equal_workers_are_not_told_of(tmp_path: Path, plan: Plan) -> None:
    with capture_logs() as logged:
        for index in range(2):
            run_shard(tmp_path, plan, index, 2)
        finish(tmp_path, plan)
    assert not {"worker.differs", "plan.mixed_workers"} & {one["event"] for one in logged}
    assert report(tmp_path)["shares"]["mixed_workers"] == []
    assert not list((tmp_path / "out/_parts").glob(f"*/{FIRST}"))


def test_cores_count_only_if_they_decide_how_many_threads_a_session_has(plan: Plan) -> None:
    (step,) = run_jobs(plan)
    assert facts_of_this_worker(plan, step)["cores"] is not None
    steps = (
        replace(one, options={"intra_op_num_threads": "2"}) if isinstance(one, OpenSession) else one
        for one in plan.steps
    )
    assert facts_of_this_worker(replace(plan, steps=tuple(steps)), step)["cores"] is None
    assert facts_of_this_worker(plan, replace(step, thread_layout=BY_RULE.name))["cores"] is None
    assert facts_of_this_worker(plan, replace(step, thread_layout=ThreadLayout(threads=0).name))["cores"] is not None


@pytest.mark.parametrize("text", ["[1]", "{}", '{"host": "a", "versions": [], "processor": null}', "{"])
def test_facts_of_the_first_worker_that_are_damaged_are_told_as_such(tmp_path: Path, plan: Plan, text: str) -> None:
    begun_elsewhere(tmp_path, plan).write_text(text)
    ended = run_shard(tmp_path, plan, 0, 1)
    assert (ended.status, ended.refused) == (Status.FAILED, False)
    assert f"{FIRST} is damaged" in (ended.reason or "")
