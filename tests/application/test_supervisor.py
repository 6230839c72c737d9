"""The parent of a run: what it makes of a child that ends without a word."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.facts import make_facts
from support.forks import children_as_forks
from support.jobs import changed
from support.specs import make_spec

from ortdeploy.application.supervisor import ChildBugError, Supervisor
from ortdeploy.cli.children.apply import needs_supervision
from ortdeploy.deployment.resolve import resolve
from ortdeploy.diagnostics import LockedError, OrtdeployError
from ortdeploy.jobs.job_report import NOT_BEGUN, unrun
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.records import Part
from ortdeploy.plan.made_by import made_by
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import FinishedJob, OpenSession, Plan, RunJob
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.process.native_output import NativeOutput, last_error_line
from ortdeploy.results.results import JobResult, Status

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx, sessions: [{name: npu, providers: [QNN, CPU]}, {name: gpu, providers: [CUDA, CPU]}, {name: cpu, providers: [CPU]}]}
  other: {path: m.onnx}
jobs:
  run: {model: m, input: {path: data.npy}, batch: {last: pad}, output: {path: out}}
  more: {model: other, input: {path: data.npy}, batch: {last: pad}, output: {path: more}}
"""
OPENING = ("say", {"kind": "doing", "model": "m", "session": "npu"})
RUNNING = ("say", {"kind": "doing", "model": "m", "job": "run"})


def done(job: str) -> tuple[str, dict[str, Any]]:
    fields = {"job": job, "status": "done", "output": "o", "committed": 5, "failed": 0, "skipped": 0, "seconds": 0.1}
    return "say", {"kind": "result", "result": {**fields, "reason": None, "stuck": []}}


def stuck(job: str, *rows: int) -> tuple[str, dict[str, Any]]:
    kind, message = done(job)
    return kind, {**message, "result": {**message["result"], "status": "failed", "stuck": list(rows)}}


@pytest.fixture
def plan() -> Plan:
    spec = make_spec(MANIFEST)
    model = {"inputs": {"image": "float32[32,1,8,8]"}, "outputs": {"scores": "float32[32,10]"}}
    facts = make_facts(
        spec,
        {
            "providers": ["QNNExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"],
            "models": {"m": model, "other": model},
        },
    )
    return make_plan(resolve(spec, facts))


class Family:
    """A supervisor whose children follow a script."""

    def __init__(self, plan: Plan, folder: Path, *script: list[tuple[str, Any]], stopped: bool = False) -> None:
        """`stopped`: a signal comes once the first child has begun."""
        self.folder = folder
        self.closed: list[tuple[str, str]] = []
        self.supervisor = Supervisor(
            plan=plan,
            module="support.fake_child",
            settings={"script": script, "counter": str(folder / "starts")},
            close_job=self.close,
            unrun=lambda left: unrun(left, folder, NOT_BEGUN),
            stopped=lambda: stopped and self.has_begun(),
        )

    def has_begun(self) -> bool:
        return (self.folder / "starts.0").exists()

    def close(self, step: RunJob, reason: str) -> JobResult:
        self.closed.append((step.job, reason))
        return JobResult(job=step.job, status=Status.FAILED, output=step.output.shown, reason=reason)

    def run(self) -> list[tuple[str, str]]:
        return [(result.job, str(result.status)) for result in self.supervisor.run()]

    def request(self, start: int) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / f"starts.{start}").read_text())
        return loaded

    def candidates(self, start: int) -> list[str]:
        steps = self.request(start)["plan"]["steps"]
        return [one["name"] for step in steps if step["step"] == "open-session" for one in step["candidates"]]


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    with children_as_forks():
        yield


def with_use(plan: Plan, **changes: Any) -> Plan:
    return replace(
        plan,
        steps=tuple(replace(s, **changes) if isinstance(s, OpenSession) and s.model == "m" else s for s in plan.steps),
    )


def test_only_plans_with_other_providers_need_a_child(plan: Plan) -> None:
    assert needs_supervision(plan)
    assert not needs_supervision(replace(plan, steps=tuple(s for s in plan.steps if s.session != "m")))


def test_the_next_child_is_told_when_a_job_began(plan: Plan, tmp_path: Path) -> None:
    before = time.monotonic()
    family = Family(plan, tmp_path, [OPENING, RUNNING, ("exit", 1)], [RUNNING, done("run"), done("more")])
    family.run()
    assert family.request(0)["began"] == {}
    assert before <= family.request(1)["began"]["run"] <= time.monotonic()


def test_a_child_that_ends_well_leaves_its_results(plan: Plan, tmp_path: Path) -> None:
    family = Family(plan, tmp_path, [OPENING, RUNNING, done("run"), done("more")])
    assert family.run() == [("run", "done"), ("more", "done")]


@pytest.mark.quick("before0-ending0", "before1-ending2")
@pytest.mark.parametrize("ending", [("kill", signal.SIGABRT), ("kill", signal.SIGSEGV), ("exit", 3), ("exit", 0)])
@pytest.mark.parametrize("before", [[OPENING], [OPENING, RUNNING]])
def test_the_next_session_goes_on_after_one_that_took_its_process(
    plan: Plan, tmp_path: Path, before: list[Any], ending: tuple[str, int]
) -> None:
    printed = ("print", "\x1b[1;31m2026 [E:onnxruntime:Default, qnn.cc:1 Setup] libQnn.so is gone\x1b[m\n")
    family = Family(plan, tmp_path, [*before, printed, ending], [done("run"), done("more")])
    assert family.run() == [("run", "done"), ("more", "done")]
    assert family.candidates(1) == ["gpu", "cpu", "other"]
    ((session, reason),) = family.request(1)["skipped"]["m"]
    assert session == "npu"
    assert reason.startswith("the process that ")
    assert "session npu of model" in reason
    assert reason.endswith(' It printed: "libQnn.so is gone".')
    assert ("was ended by SIG" in reason) == (ending[0] == "kill")


def with_one_session(plan: Plan) -> Plan:
    return with_use(plan, candidates=next(s for s in plan.steps if isinstance(s, OpenSession)).candidates[:1])


@pytest.mark.parametrize(
    "ending", [[OPENING, ("kill", 6)], [OPENING, RUNNING, ("kill", 9)], [OPENING, RUNNING, ("exit", 3)]]
)
def test_a_model_without_another_session_loses_its_jobs_and_no_others(
    plan: Plan, tmp_path: Path, ending: list[tuple[str, Any]]
) -> None:
    family = Family(with_one_session(plan), tmp_path, ending, [done("more")])
    assert family.run() == [("run", "failed"), ("more", "done")]
    assert [job for job, _ in family.closed] == ["run"]
    assert not family.request(1)["closely"]


def runs(*rows: int) -> tuple[str, dict[str, Any]]:
    return "say", {"kind": "running", "job": "run", "rows": rows}


def test_rows_that_crash_native_code_are_found_by_children_that_are_watched_closely(plan: Plan, tmp_path: Path) -> None:
    begin, crash = [OPENING, RUNNING], ("kill", signal.SIGSEGV)
    family = Family(
        with_one_session(plan),
        tmp_path,
        [*begin, crash],
        [*begin, runs(0, 1), runs(), runs(2, 3), crash],
        [*begin, runs(0, 1), runs(), runs(2), runs(), runs(3), crash],
        [done("run"), done("more")],
    )
    assert family.run() == [("run", "done"), ("more", "done")]
    assert [family.request(start)["closely"] for start in range(4)] == [False, True, True, True]
    how = "was ended by SIGSEGV"
    assert [family.request(start)["fatal"] for start in range(4)] == [
        {},
        {},
        {"run": [[[2, 3], how]]},
        {"run": [[[2, 3], how], [[3], how]]},
    ]
    assert not family.closed


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize(
    "crashing",
    [
        [runs(2), runs(), ("kill", signal.SIGSEGV)],  # between two runs
        [runs(2), ("kill", signal.SIGKILL)],  # the system's, for memory
        [runs(2), OPENING, ("kill", signal.SIGSEGV)],
    ],
)
def test_a_crash_that_no_rows_have_brought_about_ends_the_job(
    plan: Plan, tmp_path: Path, crashing: list[tuple[str, Any]]
) -> None:
    crash = ("kill", signal.SIGSEGV)
    script = [OPENING, RUNNING, crash], [OPENING, RUNNING, *crashing], [done("more")]
    family = Family(with_one_session(plan), tmp_path, *script)
    assert family.run() == [("run", "failed"), ("more", "done")]


def test_rows_that_crash_though_they_are_left_out_end_the_job(plan: Plan, tmp_path: Path) -> None:
    again = [OPENING, RUNNING, runs(3), ("kill", signal.SIGABRT)]
    family = Family(with_one_session(plan), tmp_path, again, again, again, [done("more")])
    assert family.run() == [("run", "failed"), ("more", "done")]


def test_what_ended_before_the_crash_is_not_run_again(plan: Plan, tmp_path: Path) -> None:
    other = ("say", {"kind": "doing", "model": "other", "session": "other"})
    family = Family(plan, tmp_path, [OPENING, RUNNING, done("run"), other, ("kill", 6)])
    assert family.run() == [("run", "done"), ("more", "failed")]


@pytest.mark.parametrize(
    ("on_unavailable", "before", "candidates"),
    [
        ("next", [OPENING], ["gpu", "cpu", "other"]),
        ("fail", [OPENING], ["other"]),
        ("next", [OPENING, RUNNING], ["npu", "gpu", "cpu", "other"]),  # whose rows they are is found out
    ],
)
def test_where_all_sessions_are_used_one_is_given_up_only_if_it_may_and_is_known(
    plan: Plan, tmp_path: Path, on_unavailable: str, before: list[Any], candidates: list[str]
) -> None:
    plan = with_use(plan, use="all", on_unavailable=on_unavailable)
    family = Family(plan, tmp_path, [*before, ("kill", 6)], [done("more")])
    family.run()
    assert family.candidates(1) == candidates


def test_a_child_that_dies_before_it_says_anything_fails_every_job(plan: Plan, tmp_path: Path) -> None:
    family = Family(plan, tmp_path, [("kill", 9)])
    assert family.run() == [("run", "failed"), ("more", "failed")]
    assert "ran the plan was ended by SIGKILL" in family.closed[0][1]


@pytest.mark.parametrize(
    ("kind", "error"), [("locked", LockedError), ("error", OrtdeployError), ("bug", ChildBugError)]
)
def test_what_the_child_raises_is_raised_here(plan: Plan, tmp_path: Path, kind: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="why"):
        Family(plan, tmp_path, [("say", {"kind": kind, "reason": "why"})]).run()


def test_a_run_that_was_asked_to_stop_is_not_begun_again(plan: Plan, tmp_path: Path) -> None:
    family = Family(plan, tmp_path, [OPENING, ("kill", 15)], stopped=True)
    assert family.run() == [("run", "interrupted"), ("more", "interrupted")]


@pytest.mark.parametrize("ending", [("kill", signal.SIGTERM), ("exit", 128 + signal.SIGTERM), ("kill", signal.SIGKILL)])
def test_a_child_that_the_signal_ends_as_it_begins_has_not_crashed(
    plan: Plan, tmp_path: Path, ending: tuple[str, int]
) -> None:
    family = Family(plan, tmp_path, [ending], stopped=True)
    family.supervisor.forward(signal.SIGTERM)
    status = "failed" if ending[1] == signal.SIGKILL else "interrupted"
    assert family.run() == [("run", status), ("more", status)]
    assert bool(family.closed) == (status == "failed")


def test_after_a_signal_no_child_begins(plan: Plan, tmp_path: Path) -> None:
    family = Family(plan, tmp_path, [done("run"), done("more")])
    family.supervisor.stopped = lambda: True
    part = Part(number=0, start=0, rows=3, committed=2, failed=1, skipped=0, file=None, bytes=0)
    with open_ledger(tmp_path) as ledger:
        key = ledger.key(Path(plan.folder) / "out")
        (step, _) = run_jobs(plan)
        ledger.begin(key, made_by=made_by(plan, step), job="run", run="r")
        ledger.commit_part(key, part, [])
    results = family.supervisor.run()
    assert [str(result.status) for result in results] == ["interrupted", "interrupted"]
    assert [(result.committed, result.failed) for result in results] == [(2, 1), (0, 0)]
    assert not family.has_begun()


def test_signals_are_handed_on(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family(plan, tmp_path, [("wait", 0)], stopped=True)
    heard = "ortdeploy.application.supervisor._take_message"

    def terminate(*_: object) -> None:
        family.supervisor.forward(signal.SIGTERM)

    monkeypatch.setattr(heard, terminate)
    assert family.run() == [("run", "interrupted"), ("more", "interrupted")]
    family.supervisor.forward(signal.SIGTERM)  # to nobody: it has ended


def test_printed_text_is_taken_once_and_its_end_is_kept() -> None:
    native = NativeOutput()
    with native.taking():
        os.write(1, b"first\n")
        os.write(2, b"x" * 100_000 + b"\nlast\n")
    text = native.take()
    assert len(text) == 64 * 1024
    assert text.endswith("last\n")
    assert native.take() == ""
    with native.taking():
        os.write(2, b"again")
    assert native.take() == "again"
    native.close()


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        ("", ""),
        ("2026 [W:onnxruntime:, a.cc:1 F] only a warning\n", ""),
        ("2026 [E:onnxruntime:, a.cc:1 F] first\n2026 [E:onnxruntime:, b.cc:1 F] second\n", ' It printed: "first".'),
        ("terminate called\n  what():  stoul\n\n", ' It printed: "what():  stoul".'),
    ],
)
def test_the_line_that_explains_is_found(printed: str, sentence: str) -> None:
    assert last_error_line(printed) == sentence


def test_a_run_that_ended_with_its_child_is_told_to_the_next_one(plan: Plan, tmp_path: Path) -> None:
    script = [OPENING, RUNNING, stuck("run", 4, 5, 6)], [OPENING, RUNNING, stuck("run", 4)], [done("run"), done("more")]
    family = Family(plan, tmp_path, *script)
    assert family.run() == [("run", "done"), ("more", "done")]
    assert [family.request(start)["fatal"] for start in range(3)] == [
        {},
        {"run": [[[4, 5, 6], None]]},
        {"run": [[[4, 5, 6], None], [[4], None]]},
    ]
    assert family.candidates(2) == ["npu", "gpu", "cpu", "other"]


def test_a_run_that_no_child_can_do_without_ends_its_job_and_no_other(plan: Plan, tmp_path: Path) -> None:
    again = [OPENING, RUNNING, stuck("run", 4)]
    family = Family(plan, tmp_path, again, again, [done("more")])
    assert family.run() == [("run", "failed"), ("more", "done")]


def test_a_stopped_run_starts_no_child_for_a_run_that_was_ended(plan: Plan, tmp_path: Path) -> None:
    family = Family(plan, tmp_path, [OPENING, RUNNING, stuck("run", 4)], stopped=True)
    assert family.run() == [("run", "failed"), ("more", "interrupted")]


def test_a_bound_on_runs_needs_a_child(plan: Plan) -> None:
    on_cpu = replace(plan, steps=tuple(step for step in plan.steps if step.session != "m"))
    assert not needs_supervision(on_cpu)
    assert needs_supervision(changed(on_cpu, errors={"run_timeout": 30.0}))


def test_a_model_that_writes_needs_a_child(plan: Plan) -> None:
    on_cpu = tuple(step for step in plan.steps if step.session != "m")
    writing = tuple(replace(step, generates=True) if isinstance(step, OpenSession) else step for step in on_cpu)
    assert needs_supervision(replace(plan, steps=writing))


def test_what_a_killed_command_left_is_completed_by_the_first_child(plan: Plan, tmp_path: Path) -> None:
    step = next(step for step in plan.steps if isinstance(step, RunJob))
    whole = FinishedJob(job="whole", output="o", path="o", rows=5)
    left = FinishedJob(job="left", output="o", path="o", rows=5, left_over=step.output)
    family = Family(
        replace(plan, finished=(whole, left)),
        tmp_path,
        [stuck("left"), OPENING, ("kill", signal.SIGSEGV)],
        [done("run"), done("more")],
    )
    ended = [("whole", "nothing-to-do"), ("left", "failed"), ("run", "done"), ("more", "done")]
    assert family.run() == ended
    asked = [json.loads((tmp_path / f"starts.{start}").read_text())["plan"]["finished"] for start in (0, 1)]
    assert [[job["job"] for job in one] for one in asked] == [["left"], []]


def proving(*, begins: bool) -> tuple[str, dict[str, Any]]:
    return "say", {"kind": "proving", "job": "run", "begins": begins}


def test_a_crash_while_rows_are_compared_leaves_the_job_without_its_proof(plan: Plan, tmp_path: Path) -> None:
    """No row, and no session, is blamed for a batch that the job itself would never run."""
    begin, crash = [OPENING, RUNNING], ("kill", signal.SIGFPE)
    compared = [proving(begins=True), proving(begins=False), proving(begins=True)]
    family = Family(plan, tmp_path, [*begin, *compared, crash], [done("run"), done("more")])
    assert family.run() == [("run", "done"), ("more", "done")]
    later = family.request(1)
    assert later["unproven"] == {"run": "the process was ended by SIGFPE"}
    assert not later["closely"]
    assert later["skipped"] == {}
    assert not family.closed


def test_a_crash_after_rows_were_compared_is_that_of_the_rows_that_run(plan: Plan, tmp_path: Path) -> None:
    compared = [proving(begins=True), proving(begins=False)]
    crash = ("kill", signal.SIGFPE)
    family = Family(with_one_session(plan), tmp_path, [OPENING, RUNNING, *compared, crash], [done("run"), done("more")])
    assert family.run() == [("run", "done"), ("more", "done")]
    assert family.request(1)["unproven"] == {}
    assert family.request(1)["closely"]
