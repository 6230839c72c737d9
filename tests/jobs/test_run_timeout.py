"""Runs that take longer than run_timeout: ended, or known as stuck, and their batch is split like any bad one."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Cli, read_rows
from msgspec.structs import replace
from onnx import TensorProto, helper
from support.fakes import FakeRuntime, FakeSession, double
from support.jobs import changed, execute, failed, plan_for, retrying, rows, save
from support.logs import capture_logs
from support.models import save_model

from ortdeploy.diagnostics import OrtdeployError, TimedOutError
from ortdeploy.plan.steps import OpenSession, Plan, PlannedSession, PlannedThreadLayout
from ortdeploy.results.results import Status
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions import run_limit
from ortdeploy.streaming import stream
from ortdeploy.tensors.columns import Array

ENDLESS = 60.0


@dataclass
class Slow(FakeSession):
    """A session that takes for ever over a negative number, until somebody asks it to end."""

    asked: threading.Event = field(default_factory=threading.Event)

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
        if (feeds["x"] < 0).any() and self.asked.wait(ENDLESS):
            raise OrtdeployError("Exiting due to terminate flag being set to true.")
        return super().run(outputs, feeds, adapters)

    def end_runs(self, *, early: bool) -> None:
        (self.asked.set if early else self.asked.clear)()


@dataclass
class SlowRuntime(FakeRuntime):
    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        self.sessions.append(Slow(self.function))
        return self.sessions[-1]


def limited(folder: Path, count: int, rows_per_part: int = 8, **errors: float) -> Plan:
    return changed(
        plan_for(folder, count, rows_per_part=rows_per_part), errors={"run_timeout": 0.05, "max_failed": 2, **errors}
    )


def test_a_late_run_is_ended_and_the_slow_row_fails_alone(tmp_path: Path) -> None:
    save(tmp_path, [0, 1, -2, 3, 4, 5])
    result = execute(tmp_path, limited(tmp_path, 6), SlowRuntime(double))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 5, 1)
    assert [row for row, _ in rows(tmp_path)] == [0, 1, 3, 4, 5]
    (letter,) = failed(tmp_path)
    assert (letter["row"], letter["stage"], letter["code"], letter["attempts"]) == (2, "run", "timed-out", 1)
    assert letter["message"] == "the run took longer than 0.05 s and was ended"


@dataclass
class Shared(FakeSession):
    """A session of several callers; a run over a negative number takes for ever, one over another until `free`."""

    asked: threading.Event = field(default_factory=threading.Event)
    inside: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    free: threading.Event = field(default_factory=threading.Event)

    def for_caller(self) -> "Shared":
        return replace_field(self, asked=threading.Event())

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
        is_late = float(feeds["x"].min()) < 0
        self.inside.release()
        assert (self.asked if is_late else self.free).wait(ENDLESS)
        if self.asked.is_set():
            raise OrtdeployError("Exiting due to terminate flag being set to true.")
        return super().run(outputs, feeds, adapters)

    def end_runs(self, *, early: bool) -> None:
        (self.asked.set if early else self.asked.clear)()


def test_a_late_run_ends_no_run_of_another_caller() -> None:
    session, numbers = Shared(double), (-1.0, -2.0, 3.0, 4.0)
    callers = [run_limit.LimitedSession(session, 0.0 if number < 0 else ENDLESS) for number in numbers]

    def run(number: float, caller: run_limit.LimitedSession) -> object:
        try:
            return float(caller.run(["y"], {"x": np.array([[number]], np.float32)}, ())[0][0, 0])
        except OrtdeployError as error:
            return type(error)

    with ThreadPoolExecutor(len(callers)) as pool:
        found = [pool.submit(run, number, caller) for number, caller in zip(numbers, callers, strict=True)]
        assert all(session.inside.acquire(timeout=ENDLESS) for _ in callers)
        assert [caller.end_late_run() for caller in callers] == [True, True, False, False]
        assert [one.result() for one in found[:2]] == [TimedOutError, TimedOutError]
        session.free.set()
        assert [one.result() for one in found[2:]] == [6.0, 8.0]
    session.inside.release()
    assert run(1.0, callers[0]) == 2.0  # the call to end is taken back


def test_an_error_of_a_caller_s_own_is_not_tried_again() -> None:
    refused = FakeSession(refuse)
    with pytest.raises(OrtdeployError, match="no such row"):
        run_limit.LimitedSession(refused, ENDLESS).run(["y"], {"x": np.ones((1, 1), np.float32)}, ())


def refuse(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    raise OrtdeployError(f"no such row as {feeds}")


@pytest.mark.process  # it waits between two attempts
def test_a_slow_row_is_tried_again_as_often_as_retries_say_and_retry_runs_it(tmp_path: Path) -> None:
    save(tmp_path, [0, -1])
    execute(tmp_path, limited(tmp_path, 2, retries=1), SlowRuntime(double))
    assert failed(tmp_path)[0]["attempts"] == 2
    result = execute(tmp_path, retrying(limited(tmp_path, 2)), FakeRuntime(double))
    assert (result.status, failed(tmp_path)) == (Status.DONE, [])
    assert [row for row, _ in rows(tmp_path)] == [0, 1]


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    monkeypatch.setattr(run_limit, "GRACE", 0.05)
    monkeypatch.setattr(stream, "PATIENCE", 0.05)
    return threading.Event()


def test_a_run_that_cannot_be_ended_is_split_by_the_processes_that_follow(
    tmp_path: Path, hang: threading.Event
) -> None:
    """What the children of a supervisor do one after the other; finished rows are kept from one to the next."""
    save(tmp_path, [*range(6), -6, *range(7, 12)])
    plan = limited(tmp_path, 12, rows_per_part=12)

    def endless(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        if (feeds["x"] < 0).any():
            hang.wait(ENDLESS)
        return double(feeds)

    stuck: list[frozenset[int]] = []
    for _ in range(3):
        result = execute(tmp_path, plan, FakeRuntime(endless), stuck=stuck)
        assert result.status is Status.FAILED
        assert "took longer than run_timeout and could not be ended" in (result.reason or "")
        assert result.kept % 4 == 0
        stuck.append(frozenset(result.stuck))
    assert stuck == [{4, 5, 6, 7}, {6, 7}, {6}]
    result = execute(tmp_path, plan, FakeRuntime(endless), stuck=stuck)
    hang.set()
    assert (result.status, result.committed, result.failed) == (Status.DONE, 11, 1)
    assert [(one["row"], one["stage"], one["code"]) for one in failed(tmp_path)] == [(6, "run", "timed-out")]


def test_a_run_in_time_is_left_alone(tmp_path: Path) -> None:
    save(tmp_path, range(12))
    runtime = SlowRuntime(double)
    assert execute(tmp_path, limited(tmp_path, 12, run_timeout=ENDLESS), runtime).committed == 12
    assert not any(one.asked.is_set() for one in runtime.sessions if isinstance(one, Slow))


def measured(plan: Plan) -> Plan:
    """The same with `batch: {size: auto}`."""
    return changed(plan, batching={"auto": True})


def test_a_batch_that_takes_too_long_is_not_chosen(tmp_path: Path) -> None:
    save(tmp_path, [1.0] * 64)

    @dataclass
    class Large(Slow):
        def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
            if len(feeds["x"]) > 8 and self.asked.wait(ENDLESS):
                raise OrtdeployError("Exiting due to terminate flag being set to true.")
            return FakeSession.run(self, outputs, feeds, adapters)

    class LargeRuntime(FakeRuntime):
        def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
            self.sessions.append(Large(self.function))
            return self.sessions[-1]

    with capture_logs() as events:
        result = execute(tmp_path, measured(limited(tmp_path, 64, run_timeout=2.0)), LargeRuntime(double))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 64, 0)
    (late,) = [event for event in events if event["event"] == "run.late_trial"]
    assert (late["rows"], late["limit"]) == (16, 2.0)
    (chosen,) = [event for event in events if event["event"] == "batch.chosen"]
    assert chosen["rows"] <= 8
    assert not [event for event in events if event["event"] == "run.late"]


@pytest.mark.parametrize("auto", ["batch", "threads"])
def test_after_a_trial_that_cannot_be_ended_the_next_process_measures_nothing(
    tmp_path: Path, hang: threading.Event, auto: str
) -> None:
    save(tmp_path, [1.0] * 64)
    plan = limited(tmp_path, 64)
    plan = measured(plan) if auto == "batch" else with_layouts(plan)
    calls = 0

    def endless(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        nonlocal calls
        calls += 1
        if calls == 3:
            hang.wait(ENDLESS)
        return double(feeds)

    result = execute(tmp_path, plan, FakeRuntime(endless))
    assert result.status is Status.FAILED
    assert "with which settings are measured took longer than run_timeout and could not be ended" in str(result.reason)
    assert result.stuck == tuple(range(1 if auto == "batch" else 64))
    with capture_logs() as events:
        again = execute(tmp_path, plan, FakeRuntime(double), stuck=[frozenset({*range(64)})])
    hang.set()
    for thread in threading.enumerate():
        if thread.name == "ortdeploy-trials":
            thread.join()
    assert (again.status, again.committed) == (Status.DONE, 64)
    assert not [event for event in events if event["event"] == "threads.chosen"]


def with_layouts(plan: Plan) -> Plan:
    """The same with `threads: auto`, which has two layouts of the same sessions."""

    def laid_out(step: OpenSession) -> OpenSession:
        one = PlannedThreadLayout(name="one", options={}, candidates=step.candidates)
        return replace(step, thread_layouts=(one, replace(one, name="two")))

    steps = (laid_out(step) if isinstance(step, OpenSession) else step for step in plan.steps)
    return replace(plan, steps=tuple(steps))


MANIFEST = """
version: 1
models: {m: {path: m.onnx, providers: [CPU]}}
jobs:
  run:
    model: m
    input: {path: x.npy, key: [row]}
    batch: {size: 2}
    output: {path: out}
    errors: {max_failed: 1, run_timeout: 1s}
"""


def _long_loop(path: Path) -> Path:
    """y = x, after a Loop of 10¹⁰ rounds if the batch holds a negative number: it can be ended between two nodes."""
    value, flag = ("v", TensorProto.FLOAT), ("on", TensorProto.BOOL)
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["on2"]), helper.make_node("Neg", ["v"], ["v2"])],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in (("round", TensorProto.INT64), flag, value)],
        [helper.make_tensor_value_info(f"{name}2", kind, []) for name, kind in (flag, value)],
    )
    return _after_rounds(path, (1, 10**10), [helper.make_node("Loop", ["count", "", "zero"], ["end"], body=body)])


def _long_node(path: Path) -> Path:
    """y = x, after one node of 10¹¹ comparisons if the batch holds a negative number: nothing ends it."""
    nodes = [
        helper.make_node("Range", ["first", "count", "step"], ["numbers"]),
        helper.make_node("Cast", ["numbers"], ["left"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["left", "half"], ["right"]),
        helper.make_node("Unsqueeze", ["left", "outer"], ["lefts"]),
        helper.make_node("Unsqueeze", ["right", "outer"], ["rights"]),
        helper.make_node("Concat", ["lefts", "lefts", "rights", "rights"], ["boxes"], axis=2),
        helper.make_node("Unsqueeze", ["left", "front"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["kept"]),
        helper.make_node("ReduceMax", ["kept"], ["last"], keepdims=0),
        helper.make_node("Cast", ["last"], ["end"], to=TensorProto.FLOAT),
    ]
    more: dict[str, Any] = {
        "first": np.int64(0),
        "step": np.int64(1),
        "half": np.float32(0.5),
        "most": np.array([10**9]),
    }
    return _after_rounds(path, (2, 450_000), nodes, outer=np.array([0, 2]), front=np.array([0, 1]), **more)


def _after_rounds(path: Path, count: tuple[int, int], nodes: Sequence[onnx.NodeProto], **constants: Any) -> Path:
    """y = x + 0 * end, where nodes make `end` of a `count`: the second one if the batch holds a negative number."""
    few, many = count
    found = [
        helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
        helper.make_node("Less", ["least", "zero"], ["is_bad"]),
        helper.make_node("Where", ["is_bad", "many", "few"], ["count"]),
        *nodes,
        helper.make_node("Mul", ["end", "zero"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    numbers = {"few": np.int64(few), "many": np.int64(many), "zero": np.float32(0), **constants}
    x, y = ({name: (int(TensorProto.FLOAT), ("batch", 2))} for name in "xy")
    return save_model(path, found, x, y, {k: np.asarray(v) for k, v in numbers.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "size", "runs_of_the_child"),
    [(_long_loop, "2", 1), (_long_node, "2", 3), (_long_loop, "auto", 1), (_long_node, "auto", 4)],
)
def test_a_graph_that_takes_for_ever_costs_its_row(
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    model: Callable[[Path], Path],
    size: str,
    runs_of_the_child: int,
) -> None:
    """ONNX Runtime ends a Loop; one long node ends with its process, also where a size is measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_limit, "GRACE", 0.5)
    model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([[1, 1], [2, 2], [-3, 3], [4, 4], [5, 5]], np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("size: 2", f"size: {size}"), encoding="utf-8")
    result = cli("apply", "m.yaml", "--log-format", "json", "--log-file", "log")
    assert result.code == 0, result.err
    assert [row["row"] for row in read_rows(tmp_path / "out")] == [0, 1, 3, 4]
    (letter,) = failed(tmp_path)
    assert (letter["row"], letter["stage"], letter["code"]) == (2, "run", "timed-out")
    assert (tmp_path / "log").read_text().count('"run.started"') == runs_of_the_child
