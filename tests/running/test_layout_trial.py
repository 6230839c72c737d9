"""Thread layouts that a job tries on its own rows: the best goes on, differing ones are left out, nothing is lost."""

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from msgspec.structs import replace
from onnx import TensorProto, helper
from support.facts import make_facts
from support.fakes import Counter, FakeRuntime, FakeSession, double, without_row_checks
from support.jobs import report, rows, save, with_files
from support.logs import capture_logs
from support.models import save_model
from support.specs import make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.deployment.threads import SMALL_RUN, ThreadLayout, tried_layouts, worth_trying
from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.facts.host import MachineFacts
from ortdeploy.facts.preflight import MemoryForecast, Preflight
from ortdeploy.feeds.prepared import Prepared
from ortdeploy.files.remembered import TuningCache
from ortdeploy.ledger.opening import copy_of_ledger, open_ledger
from ortdeploy.plan.part_table import Shard
from ortdeploy.plan.plan_file import decode_plan, encode, plan_digest
from ortdeploy.plan.steps import OpenSession, Plan, PlannedSession, PlannedThreadLayout, RunJob
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.results.results import JobResult, Status
from ortdeploy.results.rows import Block
from ortdeploy.running import lanes, layout_trial
from ortdeploy.running.executor import Execution
from ortdeploy.running.lanes import Lane
from ortdeploy.running.layout_trial import LayoutTrial
from ortdeploy.running.measured_settings import tried_layouts_key
from ortdeploy.running.member import Finished, Member
from ortdeploy.running.row_runner import Outcome
from ortdeploy.running.stream import Stream
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.opening import OpenedModel, OpenedSession
from ortdeploy.sessions.releasable import ReleasableSession
from ortdeploy.tensors.columns import Array, Column

WIDE, SHARED, NARROW = (
    ThreadLayout(threads=0).name,
    ThreadLayout(threads=0, callers=2).name,
    ThreadLayout(sessions=2).name,
)
CALLERS = ThreadLayout(callers=2).name


# What is tried


def test_the_names_of_the_layouts_say_what_they_are() -> None:
    assert (WIDE, SHARED, NARROW) == (
        "1 session of all threads",
        "1 session of all threads with 2 callers",
        "2 sessions of 1 thread",
    )


@pytest.mark.parametrize(
    ("cores", "limit", "names"),
    [
        (1, None, []),
        (8, 1, []),
        (2, None, [WIDE, SHARED, CALLERS, NARROW]),
        (8, 2, ["1 session of 2 threads", CALLERS, NARROW]),
    ],
)
def test_layouts_are_one_wide_session_its_callers_and_narrow_sessions(
    cores: int, limit: int | None, names: list[str]
) -> None:
    assert [one.name for one in tried_layouts(cores, limit)] == names


@pytest.mark.parametrize(
    ("run_bytes", "limit", "begun"),
    [(0, None, SHARED), (SMALL_RUN, None, WIDE), (0, 2, "1 session of 2 threads")],
)
def test_short_runs_get_a_second_caller_from_the_beginning(run_bytes: int, limit: int | None, begun: str) -> None:
    assert [one.name for one in worth_trying(tried_layouts(2, limit), run_bytes)] == [begun, CALLERS, NARROW]


MANIFEST = """\
version: 1
models:
  m: {{path: m.onnx{model}}}
jobs:
  run:
    model: m
    input: {{path: data.npy, key: [row]}}
    batch: {{size: {size}}}
    output: {{path: out, rows_per_part: 400}}
    {job}
"""
ROWS = 2000
NAMES = (WIDE, SHARED, CALLERS, NARROW)


def planned(
    folder: Path, *, model: str = "", size: str = "4", job: str = "", count: int = ROWS, names: Sequence[str] = NAMES
) -> Plan:
    """A plan for a machine of two cores, with room for the named layouts."""
    spec = make_spec(MANIFEST.format(model=model, size=size, job=job), folder=str(folder))
    facts = make_facts(
        spec,
        {
            "machine": {"cores": 2},
            "models": {"m": {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}},
            "inputs": {"run": {"columns": {"array": "float32[rows,2]"}, "rows": count}},
        },
    )
    forecast = MemoryForecast(parts=(), tried_layouts=dict.fromkeys(names, 1))
    deployment = replace(resolve(spec, with_files(facts, folder)), preflight=Preflight(memory={"run": forecast}))
    return without_row_checks(decode_plan(encode(make_plan(deployment))))


def opening(plan: Plan) -> OpenSession:
    (step,) = (step for step in plan.steps if isinstance(step, OpenSession))
    return step


def tried(plan: Plan) -> list[str]:
    return [layout.name for layout in opening(plan).tried_layouts]


def test_a_manifest_that_says_nothing_of_threads_tries_one_thread_and_begins_with_all(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert tried(plan) == [SHARED, CALLERS, NARROW]
    options = [dict(layout.options).get("intra_op_num_threads") for layout in opening(plan).tried_layouts]
    assert options == [None, 1, 1]
    assert [(one.candidates[0].count, one.candidates[0].callers) for one in opening(plan).tried_layouts] == [
        (1, 2),
        (1, 2),
        (2, 1),
    ]
    assert opening(plan).candidates[0].callers == 1


@pytest.mark.parametrize(
    "model",
    [
        ", session: {intra_op_num_threads: 2}",
        ", session: {execution_mode: parallel}",
        ", session: {config: {session.intra_op.allow_spinning: false}}",
        ", session: {optimized_model_filepath: o.onnx}",
        ", threads: auto",
        ", sessions: [{name: a, providers: [CPU]}]",
        ", sessions: [{name: a, providers: [CPU], count: 2}]",
        ", sessions: [{name: a, providers: [CPU], callers: 2}]",
        ", memory: lean",
        ", row_independence: false",
        ", row_independence: {rtol: 0.1}",
        ", providers: [Xnnpack, CPU]",
    ],
)
def test_what_is_written_stays(tmp_path: Path, model: str) -> None:
    assert tried(planned(tmp_path, model=model)) == []


@pytest.mark.parametrize(
    "settings",
    [{"size": "auto"}, {"job": "limits: {threads: 1}"}, {"count": 255}, {"names": [WIDE, SHARED]}, {"names": []}],
)
def test_jobs_without_a_choice_try_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert tried(planned(tmp_path, **settings)) == []


def test_rows_that_are_runs_of_their_own_try_nothing(tmp_path: Path) -> None:
    assert tried(planned(tmp_path, size="1", count=63)) == []
    assert tried(planned(tmp_path, size="1", count=64)) != []


@pytest.mark.parametrize(
    "model",
    [", session: {graph_optimization_level: basic}", ", providers: [CPU]", ", memory: {reuse: false}", ", cache: true"],
)
def test_other_settings_leave_the_threads_free(tmp_path: Path, model: str) -> None:
    assert tried(planned(tmp_path, model=model)) == [SHARED, CALLERS, NARROW]


def test_layouts_that_have_no_room_are_left_out(tmp_path: Path) -> None:
    assert tried(planned(tmp_path, names=[WIDE, SHARED, CALLERS])) == [SHARED, CALLERS]
    assert tried(planned(tmp_path, names=[WIDE, CALLERS])) == [WIDE, CALLERS]


def test_the_room_of_a_machine_does_not_change_what_parts_say_of_their_plan(tmp_path: Path) -> None:
    assert plan_digest(planned(tmp_path), "run") == plan_digest(planned(tmp_path, names=[]), "run")


# What is chosen: a trial with a stream that needs no threads


def layout(name: str, threads: int, count: int = 1, callers: int = 1) -> PlannedThreadLayout:
    options = {"intra_op_num_threads": threads} if threads else {}
    return PlannedThreadLayout(
        name=name, candidates=(PlannedSession(name="m", providers=(), count=count, callers=callers),), options=options
    )


LAYOUTS = {WIDE: layout(WIDE, 0), CALLERS: layout(CALLERS, 1, callers=2), NARROW: layout(NARROW, 1, count=2)}


@dataclass
class FakeStream:
    """Runs ten rows a block in each lane, in as many seconds as its layout takes.

    The process uses as many processor seconds for it as `cpu` says, else 0.1.
    """

    clock: list[float]
    seconds: Mapping[str, float]
    cpu: Mapping[str, float] = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    lane: Lane = field(default_factory=lambda: Lane(()))
    names: dict[int, str] = field(default_factory=dict)

    def add_lane(self, sessions: Sequence[OpenedSession]) -> Lane:
        lane = Lane([Member(opened=one, rows=None) for one in sessions])  # type: ignore[arg-type]  # none runs
        callers = sessions[0].candidate.callers
        self.names[id(lane)] = NARROW if sessions[0].candidate.count == 2 else CALLERS if callers == 2 else WIDE
        return lane

    def use(self, lane: Lane) -> None:
        self.lane = lane
        self.used.append(self.names[id(lane)])

    def in_background(self, work: Callable[[], Any]) -> "Future[Any]":
        return at_once(work)

    def run_again(self, opened: OpenedSession, prepared: Prepared) -> Outcome:
        del prepared
        return outcome(self.results.get(NARROW if opened.candidate.count == 2 else CALLERS, 1.0))

    def run_block(self) -> None:
        self.clock[0] += self.seconds[self.name]
        self.clock[1] += self.cpu.get(self.name, 0.1)
        self.lane.ran(10)

    @property
    def name(self) -> str:
        """The layout of the lane that gets blocks."""
        return self.names[id(self.lane)]


class BunchedStream(FakeStream):
    """The same with sessions that begin together, and end together."""

    through = 0

    def use(self, lane: Lane) -> None:
        super().use(lane)
        self.through = 0

    def run_block(self) -> None:
        if self.through == 0:
            self.through = len(self.lane.members)
            self.clock[0] += self.seconds[self.name] * self.through
        self.through -= 1
        self.lane.ran(10)


def at_once(work: Callable[[], Any]) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(work())
    return future


def outcome(value: float) -> Outcome:
    columns: dict[str, Column] = {
        "y": np.array([value, np.nan], np.float32),
        "text": np.array(["a"], object),
        "list": [[1, {"k": 2}]],
    }
    return Outcome(columns=columns, committed=10, failed=[], skipped=())


@dataclass
class Tried:
    trial: LayoutTrial
    stream: FakeStream
    opened: list[str]
    kept: list[str]
    measured: list[str]
    block: int = 0

    def run(self, blocks: int) -> None:
        for _ in range(blocks):
            seconds = self.stream.seconds[self.stream.name] * len(self.stream.lane.members)
            self.stream.run_block()
            block = Block(start=self.block * 10, count=10, rows=range(10), columns={}, failed=[])
            finished = Finished(block=block, outcome=outcome(1.0), seconds=seconds)
            self.trial.finished(finished, Prepared(block=block, feeds={}))
            self.block += 1

    @property
    def sessions(self) -> list[str]:
        return [one.name for one in self.trial.opened.sessions]


def opened_model(one: PlannedThreadLayout, opened_in: float = 0.0) -> OpenedModel:
    step = replace(STEP, candidates=one.candidates, options=one.options, thread_layouts=(one,))
    sessions = []
    for number in range(one.candidates[0].count):
        session = FakeSession(double)
        sessions += [
            OpenedSession(session=session, candidate=one.candidates[0], instance=number * one.candidates[0].callers + n)
            for n in range(one.candidates[0].callers)
        ]
    return OpenedModel(sessions=tuple(sessions), step=step, seconds=opened_in)


STEP = OpenSession(
    session="m",
    model="m",
    path="m.onnx",
    sha256="",
    candidates=(),
    use="first",
    on_unavailable="fail",
    cpu_fallback="allow",
    probe=None,
    options={},
    run_options={},
    cache=False,
)


@pytest.fixture(name="begun")
def trial_begun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tried]:
    clock = [0.0, 0.0]
    monkeypatch.setattr(lanes, "time", Clock(clock))
    add = attrgetter("_Pace.add")(layout_trial)

    def begin(
        seconds: Mapping[str, float],
        *,
        first: str = WIDE,
        rows: int | None = 100_000,
        results: Mapping[str, float] | None = None,
        broken: tuple[str, ...] = (),
        opened_in: float = 0.0,
        cpu: Mapping[str, float] | None = None,
        stream_type: type[FakeStream] = FakeStream,
    ) -> Tried:
        kept: list[str] = []
        opened: list[str] = []
        measured: list[str] = []

        def add_noted(pace: Any, begin: lanes.Mark, end: lanes.Mark) -> None:
            measured.append(pace.name)
            add(pace, begin, end)

        monkeypatch.setattr("ortdeploy.running.layout_trial._Pace.add", add_noted)

        def open_layout(one: PlannedThreadLayout) -> OpenedModel:
            opened.append(one.name)
            if one.name in broken:
                raise OrtdeployError("no room")
            return opened_model(one)

        stream = stream_type(clock, seconds, cpu or {}, results or {})
        trial = LayoutTrial(
            opened_model(LAYOUTS[first], opened_in),
            [one for name, one in LAYOUTS.items() if name != first],
            open_layout=open_layout,
            keep=kept.append,
            last_row=rows,
        )
        stream.lane = stream.add_lane(trial.opened.sessions)
        trial.begin(stream)
        return Tried(trial, stream, opened, kept, measured)

    return begin


Begin = Callable[..., Tried]


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.05}, NARROW),
        ({CALLERS: 0.05, WIDE: 0.1, NARROW: 0.1}, CALLERS),
        ({CALLERS: 0.1, WIDE: 0.05, NARROW: 0.1}, WIDE),
        ({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.098}, WIDE),  # not worth it
        ({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.095}, NARROW),
    ],
)
def test_the_fastest_layout_goes_on(begun: Begin, seconds: Mapping[str, float], best: str) -> None:
    tried_ = begun(seconds)
    with capture_logs() as events:
        tried_.run(1200)
    assert tried_.trial.opened.layout == best
    assert tried_.stream.used[-1] == best
    assert tried_.kept == [best]
    assert tried_.sessions == (["m"] if best == WIDE else ["m #0", "m #1"])
    (event,) = [event for event in events if event["event"] == "threads.chosen"]
    assert event["rows_per_second"] == pytest.approx({name: 10 / each for name, each in seconds.items()}, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "cpu", "best"),
    [
        ({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.102}, {CALLERS: 0.2, WIDE: 0.2, NARROW: 0.15}, NARROW),
        ({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.1}, {CALLERS: 0.2, WIDE: 0.2, NARROW: 0.19}, WIDE),  # hardly less
        ({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.11}, {CALLERS: 0.2, WIDE: 0.2, NARROW: 0.1}, WIDE),  # slower
        ({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.1}, {CALLERS: 0.1, WIDE: 0.2, NARROW: 0.15}, CALLERS),
    ],
)
def test_of_layouts_that_are_as_fast_the_one_that_needs_clearly_less_of_the_processor_is_best(
    begun: Begin, seconds: Mapping[str, float], cpu: Mapping[str, float], best: str
) -> None:
    tried_ = begun(seconds, cpu=cpu)
    tried_.run(1200)
    assert tried_.trial.opened.layout == best


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.01, 0.1, 0.2])
def test_sessions_that_end_together_are_measured_as_fast_as_they_are(begun: Begin, seconds: float) -> None:
    tried_ = begun({WIDE: 1.2 * seconds, CALLERS: seconds, NARROW: seconds}, stream_type=BunchedStream)
    with capture_logs() as events:
        tried_.run(5000)
    assert tried_.trial.opened.layout == CALLERS
    (event,) = [event for event in events if event["event"] == "threads.chosen"]
    rates = event["rows_per_second"]
    assert [rates[CALLERS], rates[NARROW]] == pytest.approx([10 / seconds] * 2, rel=0.06)


def test_a_slow_layout_that_needs_less_of_the_processor_is_measured_again(begun: Begin) -> None:
    tried_ = begun({CALLERS: 0.1, WIDE: 0.095, NARROW: 0.2}, cpu={NARROW: 0.05})
    tried_.run(900)
    assert tried_.measured.count(NARROW) == layout_trial.GLANCES + layout_trial.ROUNDS
    assert tried_.trial.opened.layout == WIDE


def test_callers_share_one_session(begun: Begin) -> None:
    tried_ = begun({WIDE: 0.1, CALLERS: 0.05, NARROW: 0.1})
    tried_.run(1200)
    assert tried_.opened == [CALLERS, NARROW]
    first, second = tried_.trial.opened.sessions
    assert first.session is second.session
    assert (first.instance, second.instance) == (0, 1)


def test_a_layout_that_is_far_behind_is_measured_for_short_and_layouts_that_are_near_at_length(begun: Begin) -> None:
    tried_ = begun({CALLERS: 0.1, WIDE: 0.09, NARROW: 0.2})
    tried_.run(1200)
    glances = [WIDE, CALLERS, NARROW] * layout_trial.GLANCES
    assert tried_.measured == [*glances, WIDE, CALLERS, CALLERS, WIDE]
    assert tried_.stream.used == [*glances[1:], WIDE, CALLERS, WIDE, WIDE]


@pytest.mark.parametrize(("seconds", "looks"), [(0.3, 2), (0.4, 1)])
def test_layouts_with_slow_blocks_are_looked_at_once(begun: Begin, seconds: float, looks: int) -> None:
    tried_ = begun({CALLERS: seconds, WIDE: seconds, NARROW: 2 * seconds})
    tried_.run(1200)
    assert tried_.measured.count(NARROW) == looks


def test_if_one_layout_alone_is_near_the_best_none_is_measured_at_length(begun: Begin) -> None:
    tried_ = begun({CALLERS: 0.2, WIDE: 0.15, NARROW: 0.1})
    tried_.run(1200)
    assert tried_.measured == [WIDE, CALLERS, NARROW] * layout_trial.GLANCES
    assert tried_.trial.opened.layout == NARROW


def test_one_slow_moment_leaves_a_layout_out_of_nothing(begun: Begin) -> None:
    seconds = {CALLERS: 0.4, WIDE: 0.15, NARROW: 0.14}
    tried_ = begun(seconds)
    while tried_.stream.used[-1:] != [NARROW]:
        tried_.run(1)
    seconds[CALLERS] = 0.05
    tried_.run(1200)
    assert tried_.trial.opened.layout == CALLERS


@pytest.mark.slow
def test_a_layout_that_was_left_out_does_not_win_when_rows_become_dearer(begun: Begin) -> None:
    seconds = {CALLERS: 0.0098, WIDE: 0.01, NARROW: 0.0135}
    tried_ = begun(seconds)
    while tried_.measured.count(WIDE) <= layout_trial.GLANCES:
        tried_.run(1)
    seconds.update({name: 2 * taken for name, taken in seconds.items()})
    tried_.run(5000)
    assert NARROW not in tried_.kept
    assert tried_.trial.opened.layout != NARROW


def test_a_hopeless_layout_is_measured_at_length_once(begun: Begin) -> None:
    tried_ = begun({CALLERS: 0.1, WIDE: 0.09, NARROW: 0.11})
    tried_.run(1200)
    assert tried_.measured.count(NARROW) == layout_trial.GLANCES + 1
    assert tried_.trial.opened.layout == WIDE


@pytest.mark.parametrize(
    ("wide", "rows", "rounds"),
    [
        (0.095, 100_000, layout_trial.MOST_ROUNDS),
        (0.1, 100_000, layout_trial.ROUNDS),
        (0.095, None, layout_trial.MOST_ROUNDS),
        (0.095, 500, layout_trial.ROUNDS),  # trying would take most of the job
    ],
)
def test_the_two_fastest_layouts_are_measured_on_if_they_are_close(
    begun: Begin, wide: float, rows: int | None, rounds: int
) -> None:
    tried_ = begun({CALLERS: wide, WIDE: 0.09, NARROW: 0.11}, rows=rows)
    tried_.run(1200)
    counts = [tried_.measured.count(one) - layout_trial.GLANCES for one in (CALLERS, WIDE, NARROW)]
    assert counts == [rounds, rounds, 1]


def test_layouts_are_close_until_one_of_them_turns_out_slower(begun: Begin) -> None:
    seconds = {CALLERS: 0.095, WIDE: 0.09, NARROW: 0.2}
    tried_ = begun(seconds)
    while tried_.measured.count(CALLERS) < layout_trial.GLANCES + layout_trial.ROUNDS:
        tried_.run(1)
    seconds[CALLERS] = 0.5
    tried_.run(1200)
    assert tried_.measured.count(CALLERS) == layout_trial.GLANCES + layout_trial.ROUNDS + 1
    assert tried_.trial.opened.layout == WIDE


def test_a_layout_that_differs_in_a_bit_gets_no_rows_and_the_log_says_so(begun: Begin) -> None:
    tried_ = begun({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.01}, results={NARROW: float(np.nextafter(np.float32(1), 2))})
    with capture_logs() as events:
        tried_.run(1200)
    assert NARROW not in tried_.stream.used
    assert tried_.kept == [WIDE]
    (event,) = [event for event in events if event["event"] == "threads.differ"]
    assert (event["layout"], event["kept"], event["column"]) == (NARROW, WIDE, "y")


@pytest.mark.parametrize(("results", "is_tried"), [([0.0, 0.0], False), ([0.0, 1.0], True)])
def test_layouts_are_compared_on_a_block_whose_results_differ(
    begun: Begin, monkeypatch: pytest.MonkeyPatch, results: list[float], is_tried: bool
) -> None:
    """Of zeros alone, any layout gives the same; the row's key, which differs, is no result."""
    columns: dict[str, Column] = {"y": np.array(results, np.float32)}
    monkeypatch.setattr(sys.modules[__name__], "outcome", lambda _: Outcome(columns, 10, [], ()))
    tried_ = begun({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.1})
    tried_.run(200)
    assert bool(tried_.opened) == is_tried


def test_if_all_others_differ_the_first_is_remembered(begun: Begin) -> None:
    tried_ = begun({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.1}, results={NARROW: 2.0, CALLERS: 2.0})
    tried_.run(20)
    assert (tried_.stream.used, tried_.kept) == ([WIDE], [WIDE])


def test_a_layout_that_cannot_be_opened_is_left_out_and_tried_again_next_time(begun: Begin) -> None:
    tried_ = begun({CALLERS: 0.1, WIDE: 0.05, NARROW: 0.01}, broken=(NARROW,))
    with capture_logs() as events:
        tried_.run(1200)
    assert tried_.trial.opened.layout == WIDE
    assert [event["reason"] for event in events if event["event"] == "threads.refused"] == ["no room"]
    assert tried_.kept == []


@pytest.mark.parametrize(
    ("seconds", "settings", "is_tried"),
    [
        (0.05, {"rows": 650}, False),  # 2.95 s after the first blocks
        (0.05, {"rows": 670}, True),
        (0.05, {"rows": 3050, "opened_in": 0.5}, False),  # 1.5 s to open the others
        (0.05, {"rows": 3070, "opened_in": 0.5}, True),
        (0.2, {"rows": 450}, False),  # 39 blocks
        (0.2, {"rows": 470}, True),
        (0.05, {"rows": None}, True),
    ],
)
def test_a_short_job_tries_nothing(begun: Begin, seconds: float, settings: Mapping[str, Any], is_tried: bool) -> None:
    tried_ = begun({WIDE: seconds, CALLERS: seconds, NARROW: seconds}, **settings)
    assert not tried_.opened
    tried_.run(layout_trial.FIRST_BLOCKS)
    assert bool(tried_.opened) == is_tried


def test_sessions_are_let_go_of_when_nobody_runs_them(begun: Begin) -> None:
    tried_ = begun({CALLERS: 0.1, WIDE: 0.1, NARROW: 0.01})
    first, lane = tried_.trial.opened.sessions[0].session, tried_.stream.lane
    ticket = lane.tickets()
    lane.put("a block")  # type: ignore[arg-type]  # nobody looks into it
    assert next(ticket)
    tried_.run(1200)
    assert tried_.trial.opened.layout == NARROW
    assert isinstance(first, ReleasableSession)
    assert first.run(["y"], {"x": np.ones(1, np.float32)}, ())[0] == 2
    assert list(ticket) == []
    tried_.run(1)
    with pytest.raises(OrtdeployError, match="released"):
        first.run(["y"], {"x": np.ones(1, np.float32)}, ())
    assert (first.placement, first.held) == ({"CPUExecutionProvider": 1}, first)


# Whole jobs, on threads


@dataclass
class LayoutRuntime(FakeRuntime):
    """A runtime whose runs move a clock on, by the threads of their session, and may differ in a bit."""

    clock: list[float] = field(default_factory=lambda: [0.0])
    seconds: Mapping[int, float] = field(default_factory=lambda: {0: 0.05, 1: 0.02})
    differing: tuple[int, ...] = ()
    threads: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        del candidate
        threads = step.options.get("intra_op_num_threads", 0)
        self.threads.append(threads)

        def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
            with self.lock:
                self.clock[0] += self.seconds[threads]
            found = self.function(feeds)
            return {"y": np.nextafter(found["y"], np.float32(np.inf))} if threads in self.differing else found

        self.sessions.append(FakeSession(run))
        return self.sessions[-1]


@pytest.fixture(name="clock")
def run_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that runs move on, and a block for every batch."""
    now = [0.0, 0.0]
    monkeypatch.setattr(layout_trial, "LEAST_SECONDS", 0.0)  # blocks take none
    monkeypatch.setattr(layout_trial, "OPENINGS", 0)
    monkeypatch.setattr(lanes, "time", Clock(now))
    monkeypatch.setattr(Stream, "in_background", lambda _, work: at_once(work))
    monkeypatch.setattr("ortdeploy.running.block_sizes.MOST_BATCHES", 1)
    return now


@dataclass
class Clock:
    """Seconds, and processor seconds."""

    now: list[float]

    def perf_counter(self) -> float:
        return self.now[0]

    def process_time(self) -> float:
        return self.now[1]


def execute(
    folder: Path,
    plan: Plan,
    runtime: FakeRuntime,
    *,
    stop: Callable[[], bool] = lambda: False,
    cache: TuningCache | None = None,
    shard: Shard | None = None,
) -> JobResult:
    opener = open_ledger if shard is None else copy_of_ledger
    with opener(folder / ".ortdeploy") as ledger:
        execution = Execution(
            plan=plan,
            run_id="r",
            runtime=runtime,
            ledger=ledger,
            observer=Counter(),
            stop=stop,
            tuning_cache=cache or TuningCache(folder),
            shard=shard,
        )
        (result,) = execution.run()
    return result


EXPECTED = [(row, row * 2.0) for row in range(ROWS)]


def test_a_job_fails_when_all_sessions_of_its_layout_have(tmp_path: Path, clock: list[float]) -> None:
    """Those of layouts that were tried take no more blocks."""
    save(tmp_path, range(ROWS))

    def lost(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        if feeds["x"].max() == ROWS - 1:
            raise ProviderFailedError("device lost")
        return double(feeds)

    plan = planned(tmp_path, model=", use: all, on_unavailable: next")
    with capture_logs() as events:
        result = execute(tmp_path, plan, LayoutRuntime(lost, clock=clock))
    assert result.status is Status.FAILED
    assert [event["layout"] for event in events if event["event"] == "threads.chosen"] == [CALLERS]
    assert len([event for event in events if event["event"] == "session.failed"]) == 1


def test_rows_of_all_layouts_are_written_once_and_in_order(tmp_path: Path, clock: list[float]) -> None:
    save(tmp_path, range(ROWS))
    runtime = LayoutRuntime(double, clock=clock)
    with capture_logs() as events:
        assert execute(tmp_path, planned(tmp_path), runtime).status is Status.DONE
    assert rows(tmp_path) == EXPECTED
    assert runtime.threads == [0, 1, 1, 1]
    assert [event["layout"] for event in events if event["event"] == "threads.chosen"] == [CALLERS]
    told = report(tmp_path)
    assert told["layout"] == CALLERS
    assert sum(session["rows"] for session in told["sessions"]) == ROWS
    assert told["adapter_rows"] == {"none": ROWS}

    (tmp_path / "out").rename(tmp_path / "before")
    again = LayoutRuntime(double, clock=clock)
    assert execute(tmp_path, planned(tmp_path), again).status is Status.DONE
    assert (again.threads, rows(tmp_path)) == ([1], EXPECTED)


def test_results_that_differ_keep_the_first_layout(tmp_path: Path, clock: list[float]) -> None:
    save(tmp_path, range(ROWS))
    with capture_logs() as events:
        runtime = LayoutRuntime(double, clock=clock, differing=(1,))
        assert execute(tmp_path, planned(tmp_path), runtime).status is Status.DONE
    assert rows(tmp_path) == EXPECTED
    assert [event["layout"] for event in events if event["event"] == "threads.differ"] == [CALLERS, NARROW]
    assert report(tmp_path)["layout"] == SHARED


def test_a_job_that_goes_on_keeps_the_layout_of_its_parts(tmp_path: Path, clock: list[float]) -> None:
    save(tmp_path, range(ROWS))
    calls = iter(range(ROWS * 10))
    runtime = LayoutRuntime(double, clock=clock, differing=(0,))
    key_of = TuningCache(tmp_path)
    plan = planned(tmp_path)
    job = next(step for step in plan.steps if isinstance(step, RunJob))
    key = tried_layouts_key(opening(plan), job)
    key_of.keep(key, NARROW)
    stopped = execute(tmp_path, planned(tmp_path), runtime, stop=lambda: next(calls) > 600)
    assert stopped.status is Status.INTERRUPTED
    key_of.keep(key, WIDE)  # another job of the model has found another one since
    again = LayoutRuntime(double, clock=clock, differing=(0,))
    assert execute(tmp_path, planned(tmp_path), again).status is Status.DONE
    assert (runtime.threads, again.threads, rows(tmp_path)) == ([1, 1], [1, 1], EXPECTED)


@pytest.mark.slow
def test_a_job_whose_parts_have_a_layout_that_is_not_tried_any_more_goes_on_with_its_session(
    tmp_path: Path, clock: list[float]
) -> None:
    save(tmp_path, range(ROWS))
    calls = iter(range(ROWS * 10))
    runtime = LayoutRuntime(double, clock=clock, differing=(1,))
    before = planned(tmp_path, names=[WIDE, CALLERS, NARROW])
    assert execute(tmp_path, before, runtime, stop=lambda: next(calls) > 600).status is Status.INTERRUPTED
    again = LayoutRuntime(double, clock=clock, differing=(1,))
    assert execute(tmp_path, planned(tmp_path), again).status is Status.DONE
    assert tried(before)[0] == WIDE
    assert WIDE not in tried(planned(tmp_path))
    assert (runtime.threads[0], again.threads[0], rows(tmp_path)) == (0, 0, EXPECTED)


@pytest.mark.slow
def test_an_error_while_layouts_are_tried_loses_nothing(tmp_path: Path, clock: list[float]) -> None:
    save(tmp_path, range(ROWS))

    def break_on_1200(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        if (feeds["x"] == 1200).any():
            raise OrtdeployError("no")
        return double(feeds)

    failed = execute(tmp_path, planned(tmp_path), LayoutRuntime(break_on_1200, clock=clock))
    assert failed.status is Status.FAILED
    assert execute(tmp_path, planned(tmp_path), LayoutRuntime(double, clock=clock)).status is Status.DONE
    assert rows(tmp_path) == EXPECTED


@pytest.fixture(name="opened_beside")
def opening_beside_the_job(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set once the other layouts are open."""
    opened, in_background = threading.Event(), Stream.in_background

    def noted(stream: Stream, work: Callable[[], Any]) -> "Future[Any]":
        future = in_background(stream, work)
        future.add_done_callback(lambda _: opened.set())
        return future

    monkeypatch.setattr(layout_trial, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(layout_trial, "OPENINGS", 0.0)
    monkeypatch.setattr(layout_trial, "GLANCE", 0.0)
    monkeypatch.setattr(layout_trial, "LEAST_WINDOW", 0.0)
    monkeypatch.setattr(layout_trial, "MOST_WINDOW", 0.0)
    monkeypatch.setattr("ortdeploy.running.block_sizes.MOST_BATCHES", 1)
    monkeypatch.setattr(Stream, "in_background", noted)
    return opened


@pytest.mark.slow
def test_layouts_are_opened_beside_the_job(tmp_path: Path, opened_beside: threading.Event) -> None:
    save(tmp_path, range(ROWS))

    def wait(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        assert feeds["x"][0, 0] < 400 or opened_beside.wait(60)
        return double(feeds)

    with capture_logs() as events:
        assert execute(tmp_path, planned(tmp_path), LayoutRuntime(wait)).status is Status.DONE
    assert rows(tmp_path) == EXPECTED
    (event,) = [event for event in events if event["event"] == "threads.chosen"]
    assert set(event["rows_per_second"]) == {SHARED, CALLERS, NARROW}


def test_a_bug_while_layouts_are_opened_looks_like_one(tmp_path: Path, opened_beside: threading.Event) -> None:
    save(tmp_path, range(ROWS))

    def wait(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        assert feeds["x"][0, 0] < 400 or opened_beside.wait(60)
        return double(feeds)

    class Broken(LayoutRuntime):
        def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
            if "intra_op_num_threads" in step.options:
                raise ZeroDivisionError
            return super().open_session(step, candidate)

    with pytest.raises(ZeroDivisionError):
        execute(tmp_path, planned(tmp_path), Broken(wait))


@pytest.mark.slow
def test_shards_run_what_is_predicted(tmp_path: Path, clock: list[float]) -> None:
    save(tmp_path, range(ROWS))
    runtime = LayoutRuntime(double, clock=clock)
    assert execute(tmp_path, planned(tmp_path), runtime, shard=Shard(index=0, count=1)).status is Status.DONE
    assert (runtime.threads, rows(tmp_path)) == ([0], EXPECTED)


def test_a_real_job_gives_the_bytes_that_one_wide_session_gives(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_trial, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(layout_trial, "OPENINGS", 0.0)
    monkeypatch.setattr(layout_trial, "GLANCE", 0.0)
    monkeypatch.setattr(layout_trial, "LEAST_WINDOW", 0.0)
    monkeypatch.setattr(layout_trial, "MOST_WINDOW", 0.0)
    monkeypatch.setattr(layout_trial, "ROUNDS", 1)  # blocks that are through already are more for each look
    monkeypatch.setattr(layout_trial, "MOST_ROUNDS", 1)
    monkeypatch.setattr(Stream, "in_background", lambda _, work: at_once(work))  # the job is over in no time
    monkeypatch.setattr("ortdeploy.running.block_sizes.MOST_BATCHES", 1)
    monkeypatch.setattr(MachineFacts, "usable_cores", 2)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    shape: tuple[int, Sequence[int | str | None]] = (TensorProto.FLOAT, ["batch", 2])
    save_model(tmp_path / "m.onnx", nodes, {"x": shape}, {"y": shape}, {"w": np.eye(2, dtype=np.float32)})
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(2_000, 2)).astype(np.float32))
    found = []
    for model in ("", ", session: {execution_mode: sequential}"):
        (tmp_path / "m.yaml").write_text(MANIFEST.format(model=model, size="4", job=""))
        result = cli("apply", tmp_path / "m.yaml", "-v", "--log-format", "json")
        assert result.code == 0, result.err
        found.append([part.read_bytes() for part in sorted((tmp_path / "out").glob("part-*"))])
        events = [json.loads(line) for line in result.err.splitlines() if line.startswith("{")]
        assert any(event["event"] == "threads.chosen" for event in events) == (not model)
        (tmp_path / "out").rename(tmp_path / f"out{len(found)}")
    assert len(found[0]) == 5
    assert found[0] == found[1]
