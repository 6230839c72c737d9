"""The thread layout of an output: by rule when it begins, as it was begun from then on, whoever adds rows to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from msgspec.structs import replace
from support.facts import make_facts
from support.fakes import Counter, FakeRuntime, double
from support.jobs import failed, report, rows, save, with_files
from support.models import scale_model
from support.shards import finish, run_shard
from support.specs import make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.deployment.resolved import ResolvedJob
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import OutputFacts
from ortdeploy.facts.memory import MemoryForecast
from ortdeploy.facts.preflight import Preflight
from ortdeploy.jobs import run_settings
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.plan.plan_file import decode, encode, plan_digest
from ortdeploy.plan.steps import OpenSession, Plan, PlannedSession, RunJob
from ortdeploy.plan.thread_layout import BY_RULE, ThreadLayout, layout_of_name
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.results.results import Status
from ortdeploy.runtime.protocol import Session
from ortdeploy.runtime.session import OrtRuntime
from ortdeploy.streaming import stream
from ortdeploy.tensors.columns import Array

WIDE, SHARED, CALLERS, NARROW = (
    ThreadLayout(threads=0).name,
    ThreadLayout(threads=0, callers=2).name,
    ThreadLayout(callers=2).name,
    ThreadLayout(sessions=2).name,
)
"""The names that statistics of outputs have from when jobs tried layouts on their own rows."""

MANIFEST = """\
version: 1
models:
  m: {{path: m.onnx{model}}}
jobs:
  run:
    model: m
    input: {{path: data.npy, key: [row]}}
    batch: {{size: {size}}}
    output: {{path: out, rows_per_part: 8}}
    {job}
"""
ROWS = 32
CORES = 3


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A machine with three cores, and a function that gives it another number."""

    def let(number: int) -> None:
        monkeypatch.setattr(run_settings, "usable_cores", lambda: number)

    let(CORES)
    return let


def planned(
    folder: Path, *, model: str = "", size: str = "4", job: str = "", count: int = ROWS, callers: int | None = None
) -> Plan:
    spec = make_spec(MANIFEST.format(model=model, size=size, job=job), folder=str(folder))
    facts = make_facts(
        spec,
        {
            "models": {"m": {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}},
            "inputs": {"run": {"columns": {"array": "float32[rows,2]"}, "rows": count}},
        },
    )
    forecast = MemoryForecast(parts=(), callers=callers)
    deployment = replace(resolve(spec, with_files(facts, folder)), preflight=Preflight(memory={"run": forecast}))
    return decode(Plan, encode(make_plan(deployment)))


def with_job(plan: Plan, **changes: Any) -> Plan:
    """The plan with a job of other fields."""
    steps = (replace(one, **changes) if isinstance(one, RunJob) else one for one in plan.steps)
    return replace(plan, steps=tuple(steps))


def layout_of(plan: Plan) -> str | None:
    return next(step.thread_layout for step in plan.steps if isinstance(step, RunJob))


@dataclass
class LayoutRuntime(FakeRuntime):
    """Notes of each session how many threads it has, how often it is opened, and how many threads call it."""

    layouts: list[tuple[int | None, int, int]] = field(default_factory=list)

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        self.layouts.append((step.options.get("intra_op_num_threads"), candidate.count, candidate.callers))
        return super().open_session(step, candidate)


def execute(
    folder: Path, plan: Plan, function: Any = double, until: int | None = None, run: str = "r"
) -> LayoutRuntime:
    """Run a plan, until some rows are done or to its end."""
    runtime, observer = LayoutRuntime(function), Counter()
    with open_ledger(folder / ".ortdeploy") as ledger:
        execution = Execution(
            plan=plan,
            run_id=run,
            runtime=runtime,
            ledger=ledger,
            observer=observer,
            stop=lambda: until is not None and any(done >= until for done, _ in observer.seen),
        )
        for result in execution.results():
            assert result.status in {Status.DONE, Status.INTERRUPTED, Status.NOTHING_TO_DO}, result.reason
    return runtime


# The rule


@pytest.mark.parametrize(
    "layout",
    [BY_RULE, *map(layout_of_name, (WIDE, SHARED, CALLERS, NARROW)), ThreadLayout(sessions=3, callers=4, threads=5)],
)
def test_a_layout_is_known_by_its_name(layout: ThreadLayout) -> None:
    assert layout_of_name(layout.name) == layout


@pytest.mark.parametrize("name", ["", "wide", "1 session", "1 session of 1 thread with a caller", f"{WIDE} "])
def test_other_texts_name_no_layout(name: str) -> None:
    assert layout_of_name(name) is None


@pytest.mark.parametrize(
    "model",
    ["", ", session: {graph_optimization_level: basic}", ", providers: [CPU]", ", memory: {reuse: false}", ", cache: true"],
)  # fmt: skip
def test_what_says_nothing_of_threads_gets_a_caller_of_one_thread_for_each_core(tmp_path: Path, model: str) -> None:
    save(tmp_path, range(ROWS))
    plan = planned(tmp_path, model=model)
    assert layout_of(plan) == "1 session of 1 thread with a caller for each core"
    assert execute(tmp_path, plan).layouts == [(1, 1, CORES)]
    assert report(tmp_path)["layout"] == layout_of(plan)
    assert rows(tmp_path) == [(row, 2.0 * row) for row in range(ROWS)]


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
    assert layout_of(planned(tmp_path, model=model)) is None


@pytest.mark.parametrize("size", ["auto", "1"])
def test_the_rule_asks_for_batches_of_a_known_size(tmp_path: Path, size: str) -> None:
    assert (layout_of(planned(tmp_path, size=size)) is None) == (size == "auto")


# The number of callers


def test_the_number_of_cores_is_in_no_plan_and_no_digest(tmp_path: Path, cores: Callable[[int], None]) -> None:
    save(tmp_path, range(ROWS))
    plan = planned(tmp_path, callers=2)
    elsewhere = planned(tmp_path)
    assert (
        plan_digest(plan, "run")
        == plan_digest(elsewhere, "run")
        == plan_digest(with_job(plan, thread_layout=None), "run")
    )
    assert execute(tmp_path, elsewhere, until=8).layouts == [(1, 1, CORES)]
    cores(4)
    assert execute(tmp_path, elsewhere).layouts == [(1, 1, 4)]
    assert rows(tmp_path) == [(row, 2.0 * row) for row in range(ROWS)]


@pytest.mark.parametrize(
    ("settings", "callers"), [({"callers": 2}, 2), ({"job": "limits: {threads: 2}"}, 2), ({"callers": 9}, 3)]
)
def test_limits_lower_the_number_of_callers(tmp_path: Path, settings: dict[str, Any], callers: int) -> None:
    save(tmp_path, range(ROWS))
    assert execute(tmp_path, planned(tmp_path, **settings)).layouts == [(1, 1, callers)]


def test_an_engine_says_how_many_cores_it_has_reserved(tmp_path: Path) -> None:
    save(tmp_path, range(ROWS))
    runtime = LayoutRuntime(double)
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        execution = Execution(
            plan=planned(tmp_path), run_id="r", runtime=runtime, ledger=ledger, observer=Counter(), stop=bool, cores=2
        )
        execution.run()
    assert runtime.layouts == [(1, 1, 2)]


@pytest.mark.parametrize(("seconds", "most"), [(1.0, 2), (1e-9, 50)])
def test_where_runs_are_short_all_callers_but_two_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    monkeypatch.setattr(stream, "SECONDS_OF_PYTHON", seconds)
    save(tmp_path, range(200))
    execute(tmp_path, planned(tmp_path, count=200))
    assert rows(tmp_path) == [(row, 2.0 * row) for row in range(200)]
    (*_, last) = report(tmp_path)["sessions"]
    assert last["instance"] == CORES - 1
    assert last["rows"] <= most * 8  # a block has at most the rows of a part


# An output keeps its layout

BEGUN: Mapping[str | None, tuple[int | None, int, int]] = {
    None: (None, 1, 1),
    WIDE: (None, 1, 1),
    SHARED: (None, 1, 2),
    CALLERS: (1, 1, 2),
    NARROW: (1, 2, 1),
    "1 session of 4 threads": (4, 1, 1),
}


def opened_as(opened: tuple[int | None, int, int]) -> list[tuple[int | None, int, int]]:
    return [opened] * opened[1]


@pytest.mark.parametrize("layout", BEGUN)
def test_an_output_that_was_begun_goes_on_as_it_began(tmp_path: Path, layout: str | None) -> None:
    """As statistics name the layout from when jobs tried some; without a name, the session was that of the plan."""
    save(tmp_path, range(ROWS))
    plan = planned(tmp_path)
    execute(tmp_path, with_job(plan, thread_layout=layout), until=12)
    first = min((tmp_path / "out").glob("part-*"))
    before = first.read_bytes()
    assert execute(tmp_path, plan).layouts == opened_as(BEGUN[layout])
    assert report(tmp_path)["layout"] == layout
    assert first.read_bytes() == before
    assert rows(tmp_path) == [(row, 2.0 * row) for row in range(ROWS)]


def test_rows_of_a_layout_that_is_not_known_are_not_made_with_another(tmp_path: Path) -> None:
    save(tmp_path, range(ROWS))
    with pytest.raises(AssertionError, match='thread layout "2 pools of 1 thread", which this version does not know'):
        execute(tmp_path, with_job(planned(tmp_path), thread_layout="2 pools of 1 thread"))


def negative_fail(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    if (feeds["x"] < 0).any():
        raise OrtdeployError("negative")
    return double(feeds)


@pytest.mark.parametrize("layout", [None, NARROW, BY_RULE.name])
def test_a_retry_runs_rows_as_their_output_was_begun(tmp_path: Path, layout: str | None) -> None:
    save(tmp_path, [*range(ROWS - 1), -1])
    plan = planned(tmp_path, job="errors: {max_failed: 1}")
    begun = execute(tmp_path, with_job(plan, thread_layout=layout), negative_fail)
    assert [one["row"] for one in failed(tmp_path)] == [ROWS - 1]
    assert execute(tmp_path, with_job(plan, retry=True), run="retry").layouts == begun.layouts
    assert failed(tmp_path) == []


def test_a_new_run_begins_by_rule(tmp_path: Path) -> None:
    save(tmp_path, range(ROWS))
    plan = planned(tmp_path)
    execute(tmp_path, with_job(plan, thread_layout=None))
    (step,) = (one for one in plan.steps if isinstance(one, RunJob))
    fresh = with_job(plan, output=replace(step.output, replaces="r", aside="old"))
    assert execute(tmp_path, fresh, run="again").layouts == [(1, 1, CORES)]


def test_jobs_of_one_model_each_keep_the_layout_of_their_output(tmp_path: Path) -> None:
    save(tmp_path, range(ROWS))
    plan = planned(tmp_path)
    (step,) = (one for one in plan.steps if isinstance(one, RunJob))
    other = replace(step, job="other", output=replace(step.output, path="other"))
    wide = replace(other, thread_layout=None)
    execute(tmp_path, replace(plan, steps=(*plan.steps[:-1], wide)), until=8)
    both = replace(
        plan, steps=(*plan.steps, other, replace(other, job="third", output=replace(step.output, path="third")))
    )
    assert execute(tmp_path, both).layouts == [(1, 1, CORES), (None, 1, 1), (1, 1, CORES)]


def test_a_manifest_that_fixes_the_threads_decides_for_what_follows(tmp_path: Path) -> None:
    save(tmp_path, range(ROWS))
    execute(tmp_path, planned(tmp_path), until=8)
    assert execute(tmp_path, planned(tmp_path, model=", session: {intra_op_num_threads: 2}")).layouts == [(2, 1, 1)]


@pytest.mark.parametrize(
    ("made", "threads", "planned_as"),
    [((), None, BY_RULE.name), ((("d", 0),), None, None), ((("d", 0),), NARROW, NARROW)],
)
def test_a_plan_says_what_an_output_that_was_begun_has(
    tmp_path: Path, made: tuple[tuple[str, int], ...], threads: str | None, planned_as: str | None
) -> None:
    spec = make_spec(MANIFEST.format(model="", size="4", job=""), folder=str(tmp_path))
    facts = make_facts(
        spec,
        {
            "models": {"m": {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}},
            "inputs": {"run": {"columns": {"array": "float32[rows,2]"}, "rows": 9}},
        },
    )
    output = OutputFacts(state="part", made=made, threads=threads)
    assert layout_of(make_plan(resolve(spec, replace(facts, outputs={"run": output})))) == planned_as


# Shards


def layout_after(folder: Path, plan: Plan) -> Any:
    """The layout of an output as the ledger has it once its shards are finished."""
    assert finish(folder, plan).status is Status.DONE
    with open_ledger(folder / ".ortdeploy") as ledger:
        record = ledger.output(ledger.key(folder / "out"))
    assert record is not None
    return record.statistics.get("layout")


def test_shards_run_by_rule_and_what_follows_takes_their_layout(tmp_path: Path, cores: Callable[[int], None]) -> None:
    save(tmp_path, range(ROWS))
    plan = planned(tmp_path)
    for index in range(2):
        assert run_shard(tmp_path, plan, index, 2).status is Status.DONE
        cores(5)
    assert layout_after(tmp_path, plan) == report(tmp_path)["layout"] == BY_RULE.name
    assert rows(tmp_path) == [(row, 2.0 * row) for row in range(ROWS)]


def test_shards_keep_the_layout_of_the_first(tmp_path: Path) -> None:
    save(tmp_path, range(ROWS))
    plan = planned(tmp_path)
    run_shard(tmp_path, with_job(plan, thread_layout=NARROW), 0, 2)
    run_shard(tmp_path, plan, 1, 2)
    assert layout_after(tmp_path, plan) == NARROW


# Op steps, and real sessions

OPS = """postprocess:
      - {op: Mul, in: {A: $y, B: 2}, out: twice}"""


@pytest.mark.parametrize(("layout", "threads"), [(BY_RULE.name, [1, 1]), (WIDE, [None, None]), (NARROW, [None, 1, 1])])
def test_op_steps_have_one_thread_where_callers_by_rule_run_them(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, layout: str, threads: list[int | None]
) -> None:
    """In an output that was begun when op steps had all threads, they keep them."""
    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.ones((40, 4), np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST.format(model="", size=4, job=OPS))
    monkeypatch.setattr(ResolvedJob, "thread_layout", layout_of_name(layout))
    found, open_session = [], OrtRuntime.open_session

    def noted(runtime: OrtRuntime, step: OpenSession, candidate: PlannedSession) -> Session:
        found.append(step.options.get("intra_op_num_threads"))
        return open_session(runtime, step, candidate)

    monkeypatch.setattr(OrtRuntime, "open_session", noted)
    ended = cli("apply", "-q", tmp_path / "m.yaml")
    assert (ended.code, found) == (0, threads), ended.err


def test_a_real_job_gives_the_bytes_of_one_thread_on_any_number_of_cores(
    tmp_path: Path, cli: Cli, cores: Callable[[int], None]
) -> None:
    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((200, 4), dtype=np.float32))
    text = MANIFEST.format(model="", size=4, job="").replace("rows_per_part: 8", "rows_per_part: 40")
    found = []
    for number in (1, 2, 4):
        cores(number)
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in ("m.onnx", "data.npy"):
            (folder / name).hardlink_to(tmp_path / name)
        (folder / "m.yaml").write_text(text)
        assert cli("apply", "-q", folder / "m.yaml").code == 0
        assert report(folder)["layout"] == BY_RULE.name
        found.append([path.read_bytes() for path in sorted((folder / "out").glob("part-*"))])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 5
