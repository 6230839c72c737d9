"""Processes of one plan that are killed (SIGKILL) at any step, also while others run: every row once, nothing left over."""

import random
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.crews import FakeCrew, drive
from support.effort import effort
from support.fakes import FakeRuntime, double
from support.forks import CAN_FORK
from support.jobs import execute, plan_for, report, save
from support.kills import in_a_process, steps_of
from support.shards import finish, run_shard

from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import Status

pytestmark = [pytest.mark.process, pytest.mark.skipif(not CAN_FORK, reason="the processes are forks")]

ROWS = 30  # four parts, the last one short


def deployment(folder: Path) -> Plan:
    folder.mkdir()
    save(folder, range(ROWS))
    return plan_for(folder, ROWS)


def left(folder: Path) -> dict[str, bytes]:
    """The files of an output, also hidden ones, but for the report, what a finished plan keeps, and a copy of a ledger.

    There is a copy if one machine has made the first parts.
    """
    known = {"_run.json", "bound.json", "closed.json", "from-0.json", "deployment.json", "ledger.db"}
    files = (path for path in (folder / "out").rglob("*") if path.is_file() and path.name not in known)
    return {path.relative_to(folder / "out").as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one machine leaves."""
    folder = tmp_path_factory.mktemp("alone") / "alone"
    execute(folder, deployment(folder), FakeRuntime(double))
    return left(folder)


def work_of(folder: Path, plan: Plan, kind: str, draw: random.Random) -> Callable[[], object]:
    """What a process does."""
    count = draw.randint(1, 4)
    return {
        "alone": partial(execute, folder, plan, FakeRuntime(double)),
        "shard": partial(run_shard, folder, plan, draw.randrange(count), count),
        "finish": partial(finish, folder, plan),
        "driver": partial(drive, folder, plan, FakeCrew(folder, plan, 2)),
    }[kind]


KINDS = ("shard", "shard", "finish", "driver")


def run_schedule(folder: Path, seed: int) -> int:
    """Run processes, two at a time, most of which are killed; return how many were."""
    draw = random.Random(seed)  # noqa: S311  moments, not secrets
    plan, killed = deployment(folder), 0
    begun_alone = draw.random() < 0.3
    if begun_alone:  # and not near its end
        process = in_a_process(work_of(folder, plan, "alone", draw), killed_at=draw.randint(1, STEPS["alone"] // 2))
        killed += process.wait() == -signal.SIGKILL
    for _ in range(draw.randint(1, 4)):
        kinds = [draw.choice(KINDS) for _ in range(2)]
        if "shard" not in kinds:  # the lock of the output lets one of them run
            kinds[1] = "shard"
        moments = [draw.randint(1, STEPS[kind] * 5 // 4) for kind in kinds]
        processes = [
            in_a_process(work_of(folder, plan, kind, draw), killed_at=moment)
            for kind, moment in zip(kinds, moments, strict=True)
        ]
        ended = [process.wait() for process in processes]
        assert set(ended) <= {0, -signal.SIGKILL}, (seed, ended)
        killed += ended.count(-signal.SIGKILL)
        if not begun_alone and draw.random() < 0.2:  # a driver that is lost with its machine
            shutil.rmtree(folder / ".ortdeploy", ignore_errors=True)
    assert run_shard(folder, plan, 0, 1).status in {Status.DONE, Status.NOTHING_TO_DO}, seed
    assert finish(folder, plan).status is Status.DONE, seed
    return killed


STEPS = dict.fromkeys(("alone", "shard", "finish", "driver"), 0)
"""How many steps each kind of process takes, if nothing disturbs it."""


@pytest.fixture(scope="module", autouse=True)
def steps(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("steps")
    for kind in STEPS:
        plan = deployment(folder / kind)
        if kind == "finish":
            run_shard(folder / kind, plan, 0, 1)
        STEPS[kind] = steps_of(work_of(folder / kind, plan, kind, random.Random(1)), folder / "count")  # noqa: S311
    assert min(STEPS.values()) > 20, STEPS


def test_any_schedule_of_killed_processes_leaves_what_one_machine_leaves(
    tmp_path: Path, alone: dict[str, bytes]
) -> None:
    killed = 0
    schedules = effort(2, 200)
    for seed in range(schedules):
        folder = tmp_path / str(seed)
        killed += run_schedule(folder, seed)
        assert left(folder) == alone, seed
        assert report(folder)["rows"] == {"input": ROWS, "committed": ROWS, "failed": 0, "skipped": 0}, seed
        shutil.rmtree(folder)
    assert killed > schedules


def test_finish_deletes_the_part_that_a_killed_run_on_one_machine_was_writing(tmp_path: Path) -> None:
    plan = deployment(tmp_path / "begun")
    assert run_shard(tmp_path / "begun", plan, 0, 1).status is Status.DONE
    begun, written = (tmp_path / f"begun/out/.part-00000000.jsonl{end}" for end in (".partial", ".0123abcd.partial"))
    begun.touch()
    written.touch()  # by another machine, in this moment
    assert finish(tmp_path / "begun", plan).status is Status.DONE
    assert (begun.exists(), written.exists()) == (False, True)
