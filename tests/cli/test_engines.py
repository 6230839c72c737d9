"""What `--engine` takes, and what is said of the rest."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, Cli, read_rows
from msgspec.structs import replace
from support.crews import FakeCrew
from support.jobs import plan_for

from ortdeploy.application import ray_workers
from ortdeploy.cli import engines
from ortdeploy.cli.plans import load_plan_file
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.plan.part_table import bound_digest
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.thread_layout import BY_RULE

pytestmark = pytest.mark.process


@pytest.fixture
def plan(cli: Cli, deployment: Path) -> Path:
    (deployment / "m.yaml").write_text(MANIFEST)
    assert cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json").code == 0
    return deployment / "plan.json"


def test_without_ray_the_extra_is_named(cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "find_spec", lambda _name: None)
    missing = cli("apply", plan, "--engine", "ray")
    assert missing.code == 1
    assert '--engine ray needs Ray, which is not installed: pip install "ortdeploy[ray]"' in missing.words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "dask"], "--engine dask: write ray"),
        (["--engine", "ray="], "--engine ray=: write ray"),
        (["--engine", "ray=somewhere"], "write HOST:PORT of a cluster"),
        (["--engine", "ray=somewhere:65536"], "write HOST:PORT of a cluster"),
        (["--engine", "ray=ray://head:10001"], "ray job submit"),
        (["--workers", "2"], "--workers is for --engine"),
        (["--engine", "ray", "--workers", "0"], "is not a number of workers"),
        (["--engine", "ray", "--shard", "0/2"], "gives out the parts itself"),
    ],
)
def test_wrong_usage_says_what_to_write(cli: Cli, plan: Path, arguments: list[str], words: str) -> None:
    wrong = cli("apply", plan, *arguments)
    assert (wrong.code, words in wrong.words) == (64, True), wrong.words


def test_a_manifest_is_no_saved_plan(cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "find_spec", lambda _name: "there")
    wrong = cli("apply", plan.parent / "m.yaml", "--engine", "ray")
    assert (wrong.code, "--engine is for a saved plan" in wrong.words) == (64, True)


def test_a_file_that_arrives_while_a_driver_runs_is_the_next_plan_s(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deployment / "m.yaml").write_text(MANIFEST.replace("data.npy", "data*.npy"))
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    np.save(deployment / "data-0.npy", np.zeros((3, 4), np.float32))

    @contextmanager
    def hired(_count: int, _needs: object, _module: str, request: dict[str, Any]) -> Iterator[FakeCrew]:
        np.save(deployment / "data-1.npy", np.zeros((3, 4), np.float32))
        asked = {"jobs": None, "excluded": [], **request, "paths": [request["plan_file"]]}
        planned = load_plan_file(argparse.Namespace(**asked), in_shards=True)
        assert planned is not None
        (made,) = planned.plans
        assert bound_digest(made, run_jobs(made)[0]) == request["digest"]
        yield FakeCrew(deployment, made, 1)

    monkeypatch.setattr(ray_workers, "find_spec", lambda _name: "there")
    monkeypatch.setattr(engines, "joined", nullcontext)
    monkeypatch.setattr(engines, "hired", hired)
    applied = cli("apply", plan, "--engine", "ray")
    assert applied.code == 0, applied.words
    assert [row["row"] for row in read_rows(deployment / "outbox/run")] == list(range(20))


NODES: list[dict[str, Any]] = [
    {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
    {"Alive": True, "Resources": {"CPU": 3.0}},
    {"Alive": False, "Resources": {"CPU": 64.0}},
    {"Alive": True, "Resources": {}},
]


@pytest.mark.parametrize(
    ("cpus", "gpus", "workers"),
    [(1, 0, 2), (2, 0, 5), (4, 0, 2), (1, 1, 2)],
    ids=["one a node", "by threads", "where they fit", "one a GPU"],
)
def test_there_are_as_many_workers_as_there_is_room_for(cpus: float, gpus: float, workers: int) -> None:
    assert ray_workers.room(NODES, ray_workers.Needs(cpus=cpus, gpus=gpus)) == workers


def test_a_cluster_without_room_for_one_worker_is_refused() -> None:
    with pytest.raises(OrtdeployError, match="no node of the Ray cluster has 16 CPUs for a worker"):
        ray_workers.room(NODES, ray_workers.Needs(cpus=16, gpus=0))


@pytest.mark.parametrize(("count", "cores", "workers"), [(None, 3, 3), (2, 3, 2), (4, 2, 4), (99, 1, 99)])
def test_a_worker_with_a_caller_for_each_core_reserves_them(
    monkeypatch: pytest.MonkeyPatch, count: int | None, cores: int, workers: int
) -> None:
    """Those of the smallest node, or its share of all, and it has no more callers than that."""
    hired: list[tuple[int, float | None, Any]] = []

    class WorkerPool:
        def __init__(self, _ray: object, count: int, needs: ray_workers.Needs, _module: str, request: Any) -> None:
            hired.append((count, needs.cpus, request))

        def dismiss(self) -> None:
            """Do nothing."""

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: NODES))
    monkeypatch.setattr(ray_workers, "RayPool", WorkerPool)
    with ray_workers.hired(count, ray_workers.Needs(cpus=None, gpus=0), "m", {"run": "r"}):
        assert hired == [(workers, cores, {"run": "r", "cores": cores})]


@pytest.mark.parametrize("threads", [None, 2])
def test_a_worker_needs_the_cores_of_its_callers(tmp_path: Path, threads: int | None) -> None:
    plan = plan_for(tmp_path, 4)
    (job,) = run_jobs(plan)
    by_rule = replace(job, thread_layout=BY_RULE.name, limits=replace(job.limits, threads=threads))
    assert ray_workers.needs_of(plan, by_rule) == ray_workers.Needs(cpus=threads, gpus=0)
    assert ray_workers.needs_of(plan, job) == ray_workers.Needs(cpus=1, gpus=0)
