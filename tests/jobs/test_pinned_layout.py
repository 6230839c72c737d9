"""With `threads: auto`, all shards of a plan keep the layout that the first of them found."""

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.jobs import plan_for, save
from support.shards import finish, run_shard, run_shards

from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.jobs.pinned_layout import KEPT
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import OpenSession, Plan, PlannedThreadLayout
from ortdeploy.results.results import Status
from ortdeploy.tuning import thread_layout

ROWS = 30  # four parts
NARROW, WIDE = {"narrow": 2.0, "wide": 1.0}, {"narrow": 1.0, "wide": 2.0}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A job whose model has two layouts to measure."""
    save(tmp_path, range(ROWS))
    plan = plan_for(tmp_path, ROWS)

    def measured(step: OpenSession) -> OpenSession:
        layouts = (
            PlannedThreadLayout(name=name, candidates=step.candidates, options={"intra_op_num_threads": str(threads)})
            for name, threads in (("narrow", 1), ("wide", 2))
        )
        return replace(step, thread_layouts=tuple(layouts))

    return replace(plan, steps=tuple(measured(one) if isinstance(one, OpenSession) else one for one in plan.steps))


def with_another_job(plan: Plan) -> Plan:
    """The plan with a second job of the same model."""
    (step,) = run_jobs(plan)
    output = replace(step.output, path="other")
    return replace(plan, steps=(*plan.steps, replace(step, job="other", output=output)))


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let layouts have these rates from now on; return how often they were measured."""
    measured: list[str] = []

    def let(rates: Mapping[str, float]) -> list[str]:
        def rate(*_: Any) -> Mapping[str, float]:
            measured.append("")
            return rates

        monkeypatch.setattr(thread_layout, "_rates", rate)
        return measured

    return let


def layouts(folder: Path) -> set[str]:
    """The layouts with which the parts of an output were made."""
    receipts = (json.loads(path.read_bytes()) for path in (folder / "_parts").glob("*/part-*.json"))
    return {receipt["ran"]["layout"] for receipt in receipts}


def test_a_shard_keeps_the_layout_of_the_first_whatever_it_would_find(tmp_path: Path, plan: Plan, measure: Any) -> None:
    measure(WIDE)
    assert run_shard(tmp_path, plan, 0, 2).status is Status.DONE
    measured = measure(NARROW)
    assert run_shard(tmp_path, plan, 1, 2).status is Status.DONE
    assert (layouts(tmp_path / "out"), len(measured)) == ({"wide"}, 1)
    assert finish(tmp_path, plan).status is Status.DONE
    assert run_shard(tmp_path, plan, 0, 1).status is Status.NOTHING_TO_DO
    assert len(measured) == 1
    assert not list((tmp_path / "out/_parts").glob(f"*/{KEPT}"))


def test_of_shards_that_measure_at_the_same_time_the_first_decides(
    tmp_path: Path, plan: Plan, measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(WIDE)

    def slowly(*_: Any) -> Mapping[str, float]:
        measure(WIDE)
        run_shard(tmp_path, plan, 1, 2)
        return NARROW

    monkeypatch.setattr(thread_layout, "_rates", slowly)
    assert run_shard(tmp_path, plan, 0, 2).status is Status.DONE
    assert layouts(tmp_path / "out") == {"wide"}


def test_a_shard_that_measures_while_others_finish_has_nothing_to_do(
    tmp_path: Path, plan: Plan, measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*_: Any) -> Mapping[str, float]:
        measure(WIDE)
        run_shard(tmp_path, plan, 0, 1)
        assert finish(tmp_path, plan).status is Status.DONE
        return NARROW

    monkeypatch.setattr(thread_layout, "_rates", slowly)
    assert run_shard(tmp_path, plan, 0, 2).status is Status.NOTHING_TO_DO
    assert not list((tmp_path / "out/_parts").glob(f"*/{KEPT}"))


def test_a_disk_that_is_full_as_the_layout_is_kept_is_told_with_a_folder(
    tmp_path: Path, plan: Plan, measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails names no file."""
    measure(WIDE)
    create = SharedFolder.create

    def full(place: SharedFolder, name: str, data: bytes) -> bool:
        if name.endswith(KEPT):
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(place, name, data)

    monkeypatch.setattr(SharedFolder, "create", full)
    ended = run_shard(tmp_path, plan, 0, 2)
    assert (ended.status, ended.reason) == (
        Status.FAILED,
        f"{tmp_path}: No space left on device; make room on its disk",
    )


def test_a_shard_that_cannot_measure_is_followed_too(tmp_path: Path, plan: Plan, measure: Any) -> None:
    measure({})
    run_shard(tmp_path, plan, 0, 2)
    before = layouts(tmp_path / "out")
    measured = measure(WIDE)
    run_shard(tmp_path, plan, 1, 2)
    assert (layouts(tmp_path / "out"), len(measured)) == (before, 1)


def test_jobs_of_one_model_keep_one_layout_also_one_after_the_other(tmp_path: Path, plan: Plan, measure: Any) -> None:
    both = with_another_job(plan)
    measure(WIDE)
    for index in range(2):
        run_shards(tmp_path, both, index, 2)
        measure(NARROW)
    assert layouts(tmp_path / "out") == layouts(tmp_path / "other") == {"wide"}


def test_jobs_of_one_model_that_were_begun_with_different_layouts_each_keep_theirs(
    tmp_path: Path, plan: Plan, measure: Any
) -> None:
    both = with_another_job(plan)
    for name, rates in (("run", WIDE), ("other", NARROW)):
        measure(rates)
        alone = replace(both, steps=tuple(one for one in both.steps if getattr(one, "job", name) == name))
        run_shard(tmp_path, alone, 0, 2)
    assert {result.status for result in run_shards(tmp_path, both, 1, 2)} == {Status.DONE}
    assert (layouts(tmp_path / "out"), layouts(tmp_path / "other")) == ({"wide"}, {"narrow"})
