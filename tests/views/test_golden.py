"""What the views print for other programs, compared with `golden/`; `pytest --update-golden tests/views` writes it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.jobs import plan_for

from ortdeploy.checks.run import CheckResult
from ortdeploy.diagnostics import Certainty, Diagnostic, Severity, Span
from ortdeploy.facts.models import AdapterFacts, ParameterFacts
from ortdeploy.ledger.records import Begun, OutputRecord, Part
from ortdeploy.planning.lock import Digested
from ortdeploy.planning.refused_applies import Refusal
from ortdeploy.results.results import JobResult, Status
from ortdeploy.views import github, sarif
from ortdeploy.views import json as json_view
from ortdeploy.views.status_model import JobStatus

GOLDEN = Path(__file__).parent / "golden"
DIAGNOSTICS = (
    Diagnostic(
        rule="unavailable-provider",
        severity=Severity.ERROR,
        summary="Execution provider not available",
        detail='Model "encoder" asks for CUDA,\nand this onnxruntime offers 100% CPU: nothing else.',
        span=Span(path="deployments/a, b.yaml", line=14, column=15),
        certainty=Certainty.MACHINE,
        model="encoder",
    ),
    Diagnostic(
        rule="unknown-key",
        severity=Severity.WARNING,
        summary="Key not known",
        detail="“batsch” is no key. Did you mean “batch”?",
        span=Span(path="m.yaml", line=1, column=1),
        job="run",
    ),
)
PART = Part(
    number=0, start=0, rows=8, committed=6, failed=1, skipped=1, file="part-00000000.jsonl", bytes=120, sha256="ab" * 32
)
RECORD = OutputRecord(
    output="outbox/run", deployment="demo", job="run", identity={}, status="failed", run="4cb816e6f137",
    started="2026-01-02T03:04:05Z", ended="2026-01-02T03:05:06Z", reason="the disk is full", first_row=0, batch_size=None,
    statistics={}, part_digits=8, parts=(PART,), begun=Begun(part=PART),
)  # fmt: skip
RESULTS = (
    JobResult(
        job="run", status=Status.DONE, output="outbox/run", committed=18, failed=2, skipped=0, seconds=1.23456789
    ),
    JobResult(job="other", status=Status.FAILED, output="outbox/other", kept=4, reason="the device is gone"),
)
LIVE = {"rows": 12, "total": 40}


def planned(folder: Path) -> str:
    np.save(folder / "data.npy", np.zeros((20, 2), np.float32))
    os.utime(folder / "data.npy", (1, 1))
    return json_view.render_plan((), [plan_for(folder, 20)]).replace(str(folder), "/deployment")


CASES: dict[str, Callable[[Path], str]] = {
    "diagnostics.json": lambda _: json_view.render_check(DIAGNOSTICS),
    "diagnostics.sarif": lambda _: sarif.render_diagnostics(DIAGNOSTICS, "The page of {}.".format, "1.2.3"),
    "diagnostics.github": lambda _: github.render_diagnostics(DIAGNOSTICS),
    "plan.json": planned,
    "apply.json": lambda _: json_view.render_apply(DIAGNOSTICS[1:], (), RESULTS),
    "status.json": lambda _: json_view.render_status(
        [
            JobStatus(job="run", output="outbox/run", record=RECORD, live=LIVE),
            JobStatus(job="new", output="outbox/new", record=None),
        ],
        [Refusal(manifest="m.yaml", since="2026-01-02T03:04:05+00:00", reason="missing-model: There is none.")],
    ),
    "checks.json": lambda _: json_view.render_checks(
        [
            CheckResult(
                model="m", session="cpu", check="checks/a", status="failed", max_abs_diff=0.5, message="y differs"
            ),
            CheckResult(model="m", session="cpu", check="checks/b", status="passed", adapter="fr"),
        ]
    ),
    "adapter.json": lambda _: json_view.render_adapter(
        AdapterFacts(
            path="fr.onnx_adapter",
            adapter_version=2,
            parameters=(ParameterFacts(name="lora_A", dtype="float32", shape=(4, 2)),),
        )
    ),
    "fit.json": lambda _: json_view.render_fit(["lora_A has another shape"], ["lora_B"]),
    "tuning.json": lambda _: json_view.render_tuning(
        [{"batch": 8, "rows_per_second": 10.5}], {"batch": 8}, "tuned.yaml"
    ),
    "nothing-tuned.json": lambda _: json_view.render_tuning([], None, "tuned.yaml"),
    "lock.json": lambda _: json_view.render_lock(
        DIAGNOSTICS[:1],
        [Digested(name="double", path="m.onnx", sha256="cd" * 32, at=("models", "double"), state="open")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_is_what_it_was(name: str, tmp_path: Path, *, update_golden: bool) -> None:
    printed = CASES[name](tmp_path)
    if update_golden:
        (GOLDEN / name).write_text(printed, encoding="utf-8", newline="\n")
    assert printed == (GOLDEN / name).read_text(encoding="utf-8")
    assert name.endswith(".github") or json.loads(printed)


def test_each_golden_file_is_compared() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(CASES)
