"""The process of an engine's worker as it is: it plans again, is held against the plan, and makes what it is told."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, Cli
from onnx import numpy_helper
from support import forks
from support.models import TRAPS, crashing_model

from ortdeploy.application.worker_process import WorkerProcess
from ortdeploy.cli.plans import load_plan_file
from ortdeploy.plan.part_table import bound_digest
from ortdeploy.plan.selection import run_jobs

pytestmark = pytest.mark.process
SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 8")
Hire = Callable[..., WorkerProcess]


def saved(cli: Cli, deployment: Path) -> Path:
    assert cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json").code == 0
    return deployment / "plan.json"


@pytest.fixture
def plan(cli: Cli, deployment: Path) -> Path:
    (deployment / "m.yaml").write_text(SMALL)
    return saved(cli, deployment)


@pytest.fixture
def hire(plan: Path) -> Iterator[Hire]:
    """Workers of the plan's job, as the driver of it asks for them."""
    hired: list[WorkerProcess] = []

    def worker(**changes: Any) -> WorkerProcess:
        request = {
            "plan_file": str(plan), "root": None, "roots": [], "state_dir": None, "job": "run", "digest": digest(plan),
            "run": "r1", "log_level": "info", "name": "ray 0", **changes,
        }  # fmt: skip
        hired.append(WorkerProcess("ortdeploy.cli.children.worker", request))
        return hired[-1]

    with forks.children_as_forks():
        yield worker
        for one in hired:
            one.end()


def digest(plan: Path) -> str:
    """The digest of what the plan says of its job, as the driver has it."""
    arguments = argparse.Namespace(paths=[str(plan)], root=None, roots=[], state_dir=None, jobs=None, excluded=[])
    planned = load_plan_file(arguments, in_shards=True)
    assert planned is not None
    (made,) = planned.plans
    (step,) = run_jobs(made)
    return bound_digest(made, step)


def test_it_is_ready_makes_parts_and_tells_what_it_logs(hire: Hire, plan: Path) -> None:
    worker = hire()
    ready = worker.begin()
    assert ready["kind"] == "ready", ready
    assert ready["facts"]["versions"]["onnxruntime"]
    assert "session.opened" in {json.loads(line)["event"] for line in ready["log"]}
    made = worker.make(2)
    assert (made["kind"], made["part"], made["rows"], made["made_here"]) == ("decided", 2, 4, True)
    assert (plan.parent / "outbox/run/part-00000002.jsonl").exists()
    again = worker.make(2)
    assert (again["kind"], again["made_here"], again["seconds"]) == ("decided", False, None)
    (decision,) = (plan.parent / "outbox/run/_parts").glob("*/part-*.json")
    assert json.loads(decision.read_text())["worker"]["shard"] == "ray 0"


def test_a_file_that_arrives_after_the_plan_is_no_reason_to_refuse_it(
    cli: Cli, deployment: Path, request: pytest.FixtureRequest
) -> None:
    hire = request.getfixturevalue("hire")
    (deployment / "m.yaml").write_text(SMALL.replace("data.npy", "data*.npy"))
    saved(cli, deployment)
    np.save(deployment / "data-0.npy", np.zeros((3, 4), np.float32))
    worker = hire()
    assert worker.begin()["kind"] == "ready"
    assert (made := worker.make(2))["kind"] == "decided", made


@pytest.mark.slow
@TRAPS
def test_a_row_that_crashes_native_code_becomes_a_dead_letter(
    cli: Cli, deployment: Path, request: pytest.FixtureRequest
) -> None:
    crashing_model(deployment / "double.onnx")
    values = np.arange(1, 21).repeat(4).reshape(20, 4)
    values[10] = -1
    np.save(deployment / "data.npy", values)
    hire, plan = request.getfixturevalue("hire"), deployment / "plan.json"
    (deployment / "m.yaml").write_text(f"{SMALL}    errors: {{max_failed: 1}}\n")
    saved(cli, deployment)
    worker = hire()
    assert worker.begin()["kind"] == "ready"
    made = worker.make(1)
    assert (made["kind"], made["rows"], made["failed"]) == ("decided", 8, 1), made
    (decision,) = (plan.parent / "outbox/run/_parts").glob("*/part-*.json")
    (failed,) = json.loads(decision.read_text())["failed"]
    assert (failed["row"], failed["code"], failed["message"]) == (
        10,
        "crashed",
        "the process that ran it was ended by SIGFPE",
    )
    assert worker.make(0)["kind"] == "decided"


def test_it_refuses_a_model_that_is_not_the_plan_s(hire: Hire, plan: Path) -> None:
    worker, model = hire(), plan.parent / "double.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    said = worker.begin()
    assert (said["kind"], "[moved-fact] The model is not what" in said["reason"]) == ("refused", True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"digest": "0" * 64}, "is not the plan that the driver runs"),
        ({"job": "other"}, "is not the plan that the driver runs"),
        ({"plan_file": "/nowhere/plan.json"}, "there is no plan file /nowhere/plan.json"),
    ],
)
def test_it_refuses_what_is_not_the_drivers(hire: Hire, changes: dict[str, Any], words: str) -> None:
    said = hire(**changes).begin()
    assert (said["kind"], words in said["reason"]) == ("refused", True), said


def test_it_refuses_where_a_golden_check_fails(cli: Cli, deployment: Path, hire: Hire) -> None:
    """The plan was made with these golden outputs, which the model does not give: the driver's check is its own."""
    check = deployment / "checks/golden/test_data_set_0"
    check.mkdir(parents=True)
    values = np.ones((1, 4), np.float32)
    for name, array in (("input_0", values), ("output_0", values * 3)):
        (check / f"{name}.pb").write_bytes(numpy_helper.from_array(array, "x").SerializeToString())
    golden = SMALL.replace("{path: double.onnx}", "{path: double.onnx, checks: [checks/golden], gate: true}")
    (deployment / "m.yaml").write_text(golden)
    saved(cli, deployment)
    said = hire().begin()
    assert (said["kind"], "golden check checks/golden/test_data_set_0 of model double" in said["reason"]) == (
        "refused",
        True,
    ), said
