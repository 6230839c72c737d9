"""What a terminal shows, compared with `terminal/`; `pytest --update-golden tests/views` writes it."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.jobs import changed, plan_for, plan_with_all, plan_with_sessions
from support.logs import capture_logs
from support.terminals import Clock, shown_of_job

from ortdeploy.checks.run import CheckResult
from ortdeploy.cli.output.ascii_fallback import ERRORS
from ortdeploy.diagnostics import Certainty, Diagnostic, Severity, Span
from ortdeploy.facts.host import MachineFacts, RuntimeFacts
from ortdeploy.ledger.records import OutputRecord, Part
from ortdeploy.plan.steps import FinishedJob, OpenSession, Plan, PlannedProvider
from ortdeploy.planning.differences import NOTHING, Difference
from ortdeploy.planning.last_run import Changes
from ortdeploy.planning.overlay_search import Bounds, Setting, Trial
from ortdeploy.reports.comparison import figures
from ortdeploy.results.results import JobResult, Status
from ortdeploy.sessions.provider_trial import ProviderTrial
from ortdeploy.versions import package_version
from ortdeploy.views import summary_table
from ortdeploy.views.checks import render_checks
from ortdeploy.views.doctor import Examination, render_text
from ortdeploy.views.plan_tree import render_plan
from ortdeploy.views.progress import LogLines
from ortdeploy.views.report_diff import render_report_diff
from ortdeploy.views.status import render_status
from ortdeploy.views.status_model import JobStatus
from ortdeploy.views.text import render_changes, render_diagnostics, render_results, render_unchecked
from ortdeploy.views.tuning import render_table

GOLDEN = Path(__file__).parent / "terminal"
LINES = {
    9: "    providers: [CUDA, CPU]",
    112: "    batsch: {size: 64, last: short}  # a comment that goes on for longer than a narrow terminal is wide",
}
DIAGNOSTICS = (
    Diagnostic(
        rule="unavailable-provider",
        severity=Severity.ERROR,
        summary="Execution provider not available",
        detail=(
            'Model "digits" asks for CUDAExecutionProvider, but this onnxruntime build offers only '
            "AzureExecutionProvider and CPUExecutionProvider. ONNX Runtime would warn and run on the CPU."
        ),
        span=Span(path="deployments/broken.yaml", line=9, column=17, end=21),
        certainty=Certainty.ASSUMED,
    ),
    Diagnostic(
        rule="unknown-key",
        severity=Severity.WARNING,
        summary="Unknown key",
        detail="“batsch” is not a key of jobs.read → batch.",
        span=Span(path="deployments/broken.yaml", line=112, column=5, end=11),
    ),
    Diagnostic(
        rule="unreadable-manifest",
        severity=Severity.ERROR,
        summary="Manifest cannot be read",
        detail="There is no file gone.yaml.",
        span=Span(path="gone.yaml", line=1, column=1),
    ),
)


def findings(*, width: int | None = 100, color: bool = False) -> str:
    return render_diagnostics(DIAGNOSTICS, color=color, line_of=lambda span: LINES.get(span.line), width=width)


def many_plans(folder: Path) -> list[Plan]:
    """Return a new job on three sessions, a job that goes on, one that is finished and one that waits."""
    np.save(folder / "data.npy", np.zeros((20, 2), np.float32))
    first = plan_with_sessions(folder, 20)
    opening, run = first.steps
    assert isinstance(opening, OpenSession)
    openvino = PlannedProvider(name="OpenVINOExecutionProvider", options={"device_type": "GPU", "cache_dir": "c" * 70})
    npu = replace(opening.candidates[0], providers=(openvino, *opening.candidates[0].providers))
    opening = replace(opening, candidates=(npu, *opening.candidates[1:]), options={"intra_op_num_threads": 2})
    second = changed(plan_for(folder, 20), output={"aside": "out.4cb816e6f137", "changed": ("model",)})
    finished = FinishedJob(job="old", output="outbox/old", path="outbox/old", rows=1_234, new_run=True)
    waits = FinishedJob(job="later", output="outbox/later", path="outbox/later", rows=0, waiting="its input is empty")
    plans = [
        replace(first, steps=(opening, run)),
        replace(second, finished=(finished, waits)),
        plan_with_all(folder, 20),
    ]
    return [replace(plan, manifest="deployments/m.yaml") for plan in plans]


def plan(folder: Path, *, width: int | None = None, color: bool = False) -> str:
    return render_plan(many_plans(folder), color=color, width=width).replace(str(folder), "/deployment")


def ascii_of(text: str) -> str:
    """Return what is written to a stream of ASCII alone."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=ERRORS, newline="\n")
    stream.write(text)
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("ascii")


DIFFERENCES = (
    Difference(path="models.m.sha256", old="ab" * 32, new="cd" * 32),
    Difference(path="jobs.run.batch.size", old=4, new=8),
    Difference(path="jobs.run.limits", old=NOTHING, new={"threads": 2}),
)

RESULTS = (
    JobResult(
        job="nightly-embeddings", status=Status.DONE, output="outbox/embeddings", committed=1_234_567, failed=17,
        skipped=1_000, seconds=1234.5,
    ),
    JobResult(job="read", status=Status.NOTHING_TO_DO, output="outbox/read", committed=900),
    JobResult(
        job="pages", status=Status.PAUSED, output="outbox/pages", committed=12, kept=900, seconds=3.0,
        reason="hours: allows the next run at 22:00, and 900 more rows are kept for it",
    ),
    JobResult(job="bad", status=Status.FAILED, output="outbox/bad", reason="the disk is full"),
)  # fmt: skip
TRIALS = (
    Trial(setting=Setting(), rows_per_second=1_000, p99=0.0213, memory=2**27, rows=5_000),
    Trial(
        setting=Setting(threads=2, batch=64, memory="lean"),
        rows_per_second=9_000,
        repeated=9_100,
        p99=0.5,
        memory=2**26,
    ),
    Trial(setting=Setting(batch=512), refused="the process that ran it was ended by the system: it took all memory"),
)
CHECKS = (
    CheckResult(model="digits", session="cpu", check="checks/digits/test_data_set_0", status="passed"),
    CheckResult(
        model="digits", session="cpu", check="checks/digits/test_data_set_1", status="failed", max_abs_diff=7.0,
        message="output probabilities: 7 of 8 values differ by up to 7", adapter="fr",
    ),
)  # fmt: skip


def tuned(*, color: bool = False, width: int | None = None) -> str:
    return render_table(TRIALS, TRIALS[1], "overlays/digits.read.yaml", color=color, width=width, bounds=Bounds(p99=1))


REPORT = {
    "rows": {"input": 20, "committed": 20, "failed": 0}, "seconds_of_all_runs": 2.0, "session_run_share": 0.5,
    "session_run": {"p50": 0.0000012, "p90": 0.002, "p99": 0.5}, "peak_memory_bytes": 2**27,
}  # fmt: skip
OTHER_REPORT = {**REPORT, "seconds_of_all_runs": 1.0, "session_run": {"p50": 0.0000013, "p90": 0.0022, "p99": None}}
REPORT_DIFFERENCES = (
    Difference(path="sessions[digits 0].batch_size", old=64, new=4),
    Difference(path="session_run.p90", old=0.002, new=0.0022),
)


def reports(*, color: bool) -> str:
    told = figures((REPORT, OTHER_REPORT))
    return render_report_diff(("a/_run.json", "b/_run.json"), told, REPORT_DIFFERENCES, color=color)


def known(job: str, status: str, deployment: str = "demo", **more: Any) -> JobStatus:
    part = Part(
        number=0, start=0, rows=1_234_567, committed=1_234_567, failed=17, skipped=1_000, file="part-00000000.jsonl",
        bytes=1, sha256="ab" * 32,
    )  # fmt: skip
    record = OutputRecord(
        output=f"outbox/{job}", deployment=deployment, job=job, identity={}, status=status, run="4cb816e6f137",
        started="2026-01-02T03:04:05.123+00:00", ended=None if status == "running" else "2026-01-02T03:05:06.456+00:00",
        reason=None, first_row=0, batch_size=None, statistics={}, part_digits=8, parts=(part,), begun=None,
    )  # fmt: skip
    return JobStatus(deployment=deployment, job=job, output=f"outbox/{job}", record=record, **more)


STATUS = (
    known("nightly-embeddings", "done"),
    known("read", "running", live={
        "done": 1_300_000, "total": 2_000_000, "failed": 17, "rows_per_second": 4_000.0, "seconds_left": 175, "seconds": 325,
    }),
    known("pages", "failed", "another-deployment"),
    JobStatus(deployment="another-deployment", job="new", output="outbox/new", record=None),
)  # fmt: skip


def status(jobs: Sequence[JobStatus] = STATUS, *, width: int | None = None, color: bool = False) -> str:
    return render_status(jobs, width=width, color=color, verbose=True)


MACHINE = Examination(
    runtime=RuntimeFacts(
        version="1.32.0", available_providers=(), max_ir_version=13, runtime_packages=("onnxruntime",), max_opsets={"ai.onnx": 28}
    ),
    machine=MachineFacts(
        system="Linux", architecture="x86_64", python="3.12.1", cores=8, cpu_quota=2.0, memory_bytes=16 * 2**30,
        cpu_flags=("avx2", "sse"),
    ),
    trials=(
        ProviderTrial(provider="CPUExecutionProvider", device=None, problem=None, seconds=0.123),
        ProviderTrial(provider="WebGpuExecutionProvider", device="Some GPU", problem="it gave zeros. " * 9),
    ),
    missing={"images": (), "s3": ("s3fs>=2025.7",), "diffusion": ("torch>=2.4", "diffusers<0.40,>=0.35")},
)  # fmt: skip


def machine(*, width: int | None = None, color: bool = False) -> str:
    shown = render_text(MACHINE, width=width, color=color)
    return shown.replace(package_version("ortdeploy"), "1.2.3")


def logged() -> str:
    """Return what CI gets of a job's progress: JSON lines, without their times."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch, capture_logs() as events:
        patch.setattr("ortdeploy.durations.time.monotonic", clock)
        lines = LogLines()
        lines.job_started("read", 0, 1_000_000)
        clock.now = 10.0
        lines.rows_done(234_567, 17)
    return "".join(f"{json.dumps(event)}\n" for event in events)


def live(encoding: str = "utf-8") -> str:
    """Return the live line at several widths."""
    return "".join(f"{shown_of_job(width, encoding=encoding)}\n" for width in (40, 60, 80, 100, 120))


CASES: dict[str, Callable[[Path], str]] = {
    "findings-piped.txt": lambda _: findings(width=None),
    "progress-piped.txt": lambda _: logged(),
    "live-line.txt": lambda _: live(),
    "live-line-ascii.txt": lambda _: live("ascii"),
    "live-line-color.txt": lambda _: f"{shown_of_job(120, color=True)}\n",
    "table.txt": lambda _: summary_table.render_table(RESULTS, color=False, width=110),
    "table-60.txt": lambda _: summary_table.render_table(RESULTS, color=False, width=60),
    "table-color.txt": lambda _: summary_table.render_table(RESULTS, color=True, width=110),
    "results.txt": lambda _: render_results(RESULTS, color=False),
    "tune.txt": lambda _: tuned(),
    "tune-60.txt": lambda _: tuned(width=60),
    "tune-color.txt": lambda _: tuned(color=True, width=100),
    "status.txt": lambda _: status(),
    "status-60.txt": lambda _: status(width=60),
    "status-100.txt": lambda _: status(width=100),
    "status-one-deployment.txt": lambda _: status(STATUS[:2], width=100),
    "status-color.txt": lambda _: status(color=True, width=120),
    "doctor.txt": lambda _: machine(),
    "doctor-60.txt": lambda _: machine(width=60),
    "doctor-color.txt": lambda _: machine(width=100, color=True),
    "unchecked-60.txt": lambda _: render_unchecked(["deployments/devices", "deployments/gallery/models"], 60),
    "reports.txt": lambda _: reports(color=False),
    "reports-ascii.txt": lambda _: ascii_of(reports(color=False)),
    "reports-color.txt": lambda _: reports(color=True),
    "check.txt": lambda _: render_checks(CHECKS, color=False),
    "check-60.txt": lambda _: render_checks(CHECKS, color=False, width=60),
    "check-color.txt": lambda _: render_checks(CHECKS, color=True, width=100),
    "findings.txt": lambda _: findings(),
    "findings-60.txt": lambda _: findings(width=60),
    "findings-40.txt": lambda _: findings(width=40),
    "findings-color.txt": lambda _: findings(color=True),
    "findings-ascii.txt": lambda _: ascii_of(findings()),
    "plan.txt": plan,
    "plan-60.txt": lambda folder: plan(folder, width=60),
    "plan-color.txt": lambda folder: plan(folder, width=100, color=True),
    "plan-ascii.txt": lambda folder: ascii_of(plan(folder, width=80)),
    "changes-color.txt": lambda _: render_changes([Changes(job="run", run="r1", differences=DIFFERENCES)], color=True),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_shown_is_what_it_was(name: str, tmp_path: Path, *, update_golden: bool) -> None:
    shown = CASES[name](tmp_path)
    if update_golden:
        (GOLDEN / name).write_text(shown, encoding="utf-8", newline="\n")
    assert shown == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 100])
def test_no_line_is_wider_than_the_terminal(width: int, tmp_path: Path) -> None:
    words = max(map(len, plan(tmp_path).split()))  # a word that is wider stays whole
    assert all(len(line) <= max(width, words + 16) for line in plan(tmp_path, width=width).splitlines())
    details = [line for line in findings(width=width).splitlines() if line.startswith("  ")]
    assert all(len(line) <= width for line in details if "assumed" not in line)


def test_each_golden_file_is_compared() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(CASES)
