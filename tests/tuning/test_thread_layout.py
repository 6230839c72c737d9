"""`threads: auto`: the way to use threads is measured on the first rows, remembered, and passed over where it fails."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.facts import make_facts
from support.fakes import Counter, FakeRuntime, FakeSession, double
from support.jobs import plan_for, rows, save
from support.logs import capture_logs
from support.specs import make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.deployment.threads import thread_layouts
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.memory import MemoryForecast
from ortdeploy.facts.preflight import Preflight
from ortdeploy.files.names import REPORT
from ortdeploy.files.tuning_cache import TuningCache
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.plan.steps import OpenSession, Plan, PlannedSession, RunJob
from ortdeploy.plan.thread_layout import ThreadLayout
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.results.results import JobResult, Status
from ortdeploy.runtime.protocol import Session
from ortdeploy.tensors.columns import Array
from ortdeploy.tuning import thread_layout

WIDE, CALLERS, SESSIONS, NARROW = (
    ThreadLayout(threads=2).name,
    ThreadLayout(callers=2).name,
    ThreadLayout(sessions=2).name,
    ThreadLayout().name,
)
SECONDS = 0.004
"""That a run takes with one thread, by the clock of these tests."""

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx, threads: auto}
jobs:
  run:
    model: m
    input: {path: data.npy, key: [row]}
    batch: {size: 4}
    output: {path: out}
    limits: {threads: 2}
"""


class Clock(threading.local):
    """A clock that each thread has for itself, and that runs alone move on."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_layout, "time", CLOCK)


class Queue:
    """Runs that wait for each other: one begins when the one before it has ended."""

    def __init__(self) -> None:
        self._lock, self._free_at = threading.Lock(), 0.0

    def spend(self, seconds: float) -> None:
        with self._lock:
            CLOCK.now = self._free_at = max(CLOCK.now, self._free_at) + seconds


class NoQueue(Queue):
    """Runs that do not."""

    def spend(self, seconds: float) -> None:
        CLOCK.now += seconds


@dataclass
class LayoutRuntime(FakeRuntime):
    """A runtime in which runs take time: `shares` of it by the number of threads, one run at a time where `alone`."""

    shares: Mapping[int, float] = field(default_factory=lambda: {1: 1.0, 2: 1.0})
    alone: str | None = None
    threads: list[int] = field(default_factory=list)
    whole: Queue = field(default_factory=Queue)

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        threads = step.options["intra_op_num_threads"]
        self.threads.append(threads)
        if str(threads) in self.broken:
            raise OrtdeployError("no such threads")
        queue = {None: NoQueue(), "session": Queue(), "process": self.whole}[self.alone]

        def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
            queue.spend(SECONDS * self.shares[threads])
            return double(feeds)

        self.sessions.append(FakeSession(run))
        return self.sessions[-1]


def auto(folder: Path) -> Plan:
    """A plan of one job whose model says threads: auto, on a machine of two cores."""
    save(folder, range(40))
    spec = make_spec(MANIFEST, folder=str(folder))
    facts = make_facts(
        spec,
        {
            "machine": {"cores": 2},
            "models": {"m": {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}},
            "inputs": {"run": {"columns": {"array": "float32[rows,2]"}, "rows": 40}},
        },
    )
    planned = make_plan(resolve(spec, facts))
    job = next(step for step in plan_for(folder, 40).steps if isinstance(step, RunJob))
    steps = tuple(replace(s, input=job.input) if isinstance(s, RunJob) else s for s in planned.steps)
    return decode(Plan, encode(replace(planned, steps=steps)))


def execute(folder: Path, plan: Plan, runtime: FakeRuntime) -> JobResult:
    with open_ledger(folder / ".ortdeploy") as ledger:
        tuning_cache = TuningCache(folder / ".ortdeploy")
        execution = Execution(
            plan=plan,
            run_id="r",
            runtime=runtime,
            ledger=ledger,
            observer=Counter(),
            stop=lambda: False,
            tuning_cache=tuning_cache,
        )
        (result,) = execution.run()
    return result


def chosen(folder: Path, runtime: FakeRuntime) -> str:
    with capture_logs() as events:
        result = execute(folder, auto(folder), runtime)
    assert result.status is Status.DONE, result.reason
    assert rows(folder) == [(row, row * 2.0) for row in range(40)]
    (event,) = (event for event in events if event["event"] == "threads.chosen")
    opened = [one for one in events if one["event"] == "session.opened"]
    assert [one["log_level"] for one in (opened[0], opened[-1])] == ["debug", "info"]
    assert f'"layout": "{event["layout"]}"' in (folder / "out" / REPORT).read_text()
    return str(event["layout"])


@pytest.mark.parametrize(
    ("expected", "shares", "alone"),
    [
        (WIDE, {1: 1.0, 2: 0.3}, "process"),
        (CALLERS, {1: 1.0, 2: 1.0}, None),
        (SESSIONS, {1: 1.0, 2: 1.0}, "session"),
    ],
)
def test_the_best_way_to_use_threads_is_found(
    tmp_path: Path, expected: str, shares: Mapping[int, float], alone: str | None
) -> None:
    assert chosen(tmp_path, LayoutRuntime(double, shares=shares, alone=alone)) == expected


def test_what_was_found_is_remembered_and_opened_at_once(tmp_path: Path) -> None:
    first = chosen(tmp_path, LayoutRuntime(double, shares={1: 1.0, 2: 0.3}, alone="process"))
    (tmp_path / "out").rename(tmp_path / "old")
    again = LayoutRuntime(double)
    assert execute(tmp_path, auto(tmp_path), again).status is Status.DONE
    assert (first, again.threads) == (WIDE, [2])


def test_a_way_that_cannot_be_opened_is_passed_over(tmp_path: Path) -> None:
    runtime = LayoutRuntime(double, broken=("2",), shares={1: 1.0, 2: 0.1}, alone="session")
    assert chosen(tmp_path, runtime) == SESSIONS


def test_where_nothing_can_be_opened_the_job_says_why(tmp_path: Path) -> None:
    result = execute(tmp_path, auto(tmp_path), LayoutRuntime(double, broken=("1", "2")))
    assert result.status is Status.FAILED
    assert result.reason == "no such threads"


def test_rows_that_cannot_be_fed_leave_the_sessions_of_the_plan(tmp_path: Path) -> None:
    plan = auto(tmp_path)
    np.save(tmp_path / "data.npy", np.zeros((40, 3), np.float32))
    with capture_logs() as events:
        execute(tmp_path, plan, LayoutRuntime(double))
    assert not [event for event in events if event["event"] == "threads.chosen"]


def test_layouts_that_memory_has_no_room_for_are_not_planned(tmp_path: Path) -> None:
    spec = make_spec(MANIFEST, folder=str(tmp_path))
    deployment = resolve(spec, make_facts(spec, {"machine": {"cores": 8}}))
    forecast = MemoryForecast(parts=(), thread_layouts={WIDE: 1, NARROW: 1})
    held = replace(deployment, preflight=Preflight(memory={"run": forecast}))
    (opening,) = (step for step in make_plan(held).steps if isinstance(step, OpenSession))
    assert [layout.name for layout in opening.thread_layouts] == [WIDE, NARROW]
    (opening,) = (step for step in make_plan(deployment).steps if isinstance(step, OpenSession))
    assert [layout.name for layout in opening.thread_layouts] == [WIDE, CALLERS, SESSIONS, NARROW]


@given(st.integers(1, 64))
def test_no_layout_has_more_threads_than_there_may_be(threads: int) -> None:
    found = thread_layouts(threads)
    assert len({layout.name for layout in found}) == len(found)
    assert all(one.sessions * (one.threads + one.callers - 1) <= threads for one in found)
    assert (threads == 1) == (not found)


def test_the_names_of_layouts_say_what_they_are() -> None:
    assert (WIDE, CALLERS, SESSIONS, NARROW) == (
        "1 session of 2 threads",
        "1 session of 1 thread with 2 callers",
        "2 sessions of 1 thread",
        "1 session of 1 thread",
    )
