"""A job whose model keeps memory: it is told in the report, in `status` and at the end, with the numbers."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.fakes import FakeRuntime, FakeSession, double
from support.jobs import changed, execute, plan_for, report, save, written_as
from support.logs import capture_logs
from support.models import save_model
from support.shards import finish, run_shard

from ortdeploy.durations import Pace
from ortdeploy.facts.memory import MeasuredMemory, MemoryForecast, Way
from ortdeploy.jobs import block_monitor
from ortdeploy.ledger.live_progress import Live, read_live
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan
from ortdeploy.process import leaks
from ortdeploy.process.memory import private_memory
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.results.results import Status
from ortdeploy.sessions.runs import SessionRuns
from ortdeploy.streaming.row_runner import RowRunner
from ortdeploy.views.status import render_status
from ortdeploy.views.status_model import JobStatus

pytestmark = pytest.mark.skipif(private_memory() is None, reason="this system does not tell private memory")

ROWS, KEPT = 1000, 512 * 1024
MEASURED_AFTER_EACH_BLOCK = """
import sys
from ortdeploy.cli.main import main
from ortdeploy.process import leaks

leaks._SECONDS_BETWEEN, leaks._STEADY, leaks._LOOKS = 1e-9, 0, (160, 240)  # fragments come in steps
sys.exit(main(sys.argv[1:]))
"""


class Memory:
    """The private memory of this process: half a MiB more each time that it is looked at, as long as it `grows`.

    What this process really has, other tests free, and sessions that are ahead of the looks take before.
    """

    def __init__(self) -> None:
        self.looks, self.grows = 0, True

    def __call__(self) -> int:
        self.looks += self.grows
        return self.looks * KEPT


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """What is measured after each block."""
    made = Memory()
    monkeypatch.setattr(leaks, "_SECONDS_BETWEEN", 1e-9)
    monkeypatch.setattr(leaks, "private_memory", made)
    return made


@pytest.fixture
def plan(tmp_path: Path, memory: Memory) -> Plan:  # noqa: ARG001  it is measured so
    """A job whose memory grows."""
    save(tmp_path, range(ROWS))
    return plan_for(tmp_path, ROWS)


@pytest.mark.parametrize(("size", "shapes"), [(None, 3), (4, 1)])
def test_shapes_of_rows_are_counted_without_the_rows(tmp_path: Path, size: int | None, shapes: int) -> None:
    """A row that runs alone, without an axis for rows, has its own sizes from the first on."""
    (job,) = run_jobs(changed(plan_for(tmp_path, 8), batching={"size": size}))
    runs = SessionRuns(job, FakeSession(double))
    for count in (1, 2, 3, 2):
        runs.run({"x": np.ones((count, 2), np.float32)}, count, ())
    assert len(runs.shapes) == shapes


def status_of(folder: Path) -> str:
    with open_ledger(folder / ".ortdeploy") as ledger:
        record = ledger.output(ledger.key(folder / "out"))
    return render_status([JobStatus(job="run", output="out", record=record)])


def test_a_model_that_keeps_memory_is_told(tmp_path: Path, plan: Plan) -> None:
    with capture_logs() as logs:
        result = execute(tmp_path, plan, FakeRuntime(double))
    growth = report(tmp_path)["memory"]["growth"]
    assert growth["bytes_per_1000_rows"] == pytest.approx(ROWS / 8 * KEPT, rel=0.02)  # of blocks of 8 rows
    (text,) = result.memory
    assert text.startswith(f"memory grows by {growth['bytes_per_1000_rows'] / 2**20:.0f} MiB per 1,000 rows")
    assert report(tmp_path)["memory"]["told"] == [text]
    (leak,) = [one for one in logs if one["event"] == "job.leaks"]
    assert leak["reason"] == text
    assert f"run: {text}" in status_of(tmp_path)


def test_a_job_that_its_limit_ends_is_told_that_its_memory_grew(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryWatch, "is_near", lambda self: self.leak.growth is not None)
    monkeypatch.setattr(MemoryWatch, "is_over", True)
    monkeypatch.setattr(RowRunner, "run_smaller", lambda _: False)
    result = execute(tmp_path, plan, FakeRuntime(double))
    assert result.status is Status.FAILED
    assert "with batches that cannot be smaller: memory grows by" in (result.reason or "")


def test_a_run_that_does_not_grow_tells_nothing_of_the_one_before(tmp_path: Path, plan: Plan, memory: Memory) -> None:
    first = execute(tmp_path, plan, FakeRuntime(double), stop=lambda: memory.looks > 100)
    assert first.status is Status.INTERRUPTED
    assert first.memory
    memory.grows = False
    assert execute(tmp_path, plan, FakeRuntime(double)).memory == ()
    assert "memory" not in status_of(tmp_path)


@pytest.mark.parametrize(("limit", "keeps"), [(None, True), (2**50, False)])
def test_shapes_are_told_only_where_onnx_runtime_keeps_memory_for_them(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, limit: int | None, keeps: bool
) -> None:
    """A session that may reach a limit is opened without an arena, whatever the manifest says of memory."""
    monkeypatch.setattr("ortdeploy.jobs.opened_models.memory_of_the_group", lambda: None)
    monkeypatch.setattr(SessionRuns, "_note_shapes", lambda self, _: self.shapes.update((size,) for size in range(64)))
    result = execute(tmp_path, changed(plan, limits={"memory": limit}), FakeRuntime(double))
    assert ["memory: lean" in text for text in result.memory] == [keeps]


@pytest.mark.slow
def test_a_shard_tells_of_what_grows_over_its_parts(tmp_path: Path, plan: Plan) -> None:
    (text,) = run_shard(tmp_path, plan, 0, 1).memory
    assert text.startswith("memory grows by")
    finish(tmp_path, plan)
    assert report(tmp_path)["memory"]["told"][0].startswith("memory grows by")


def test_status_tells_it_while_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live(tmp_path, "out", None, 0)
    live.growth = {"bytes_per_1000_rows": 2**20, "grown_bytes": 2**25, "rows": 32_000, "shapes": 1}
    monkeypatch.setattr(Pace, "told", lambda *_given: (1.0, None))
    live.rows_done(1, 0)
    told = render_status([JobStatus(job="run", output="out", record=None, live=read_live(tmp_path, "out"))])
    assert "run: memory grows by 1.0 MiB per 1,000 rows: by 32 MiB in 32,000 rows" in told


@pytest.mark.parametrize(("kind", "grows"), [("npz", False), ("jsonl", True)])
def test_a_part_that_is_held_in_memory_is_no_leak(tmp_path: Path, plan: Plan, kind: str, grows: bool) -> None:
    assert bool(execute(tmp_path, written_as(plan, kind), FakeRuntime(double)).memory) == grows


def test_what_is_kept_of_each_file_is_no_leak(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as of a million pictures: 120,000 files let a process grow by 13 MiB, and as many lines of one by none."""
    monkeypatch.setattr(block_monitor, "_KEPT_OF_A_FILE", ROWS * KEPT)
    assert execute(tmp_path, plan, FakeRuntime(double)).memory == ()


def test_a_job_that_takes_much_more_than_was_measured_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not if its process had as much before, such as that of these tests, whose other memory is nobody's."""
    known = MemoryForecast(parts=(), measured=(MeasuredMemory(way=Way(arena=True), size=2**20, rows=8),))

    def told(folder: Path) -> tuple[str, ...]:
        folder.mkdir(exist_ok=True)
        save(folder, range(8))
        return execute(folder, changed(plan_for(folder, 8), limits={"forecast": known}), FakeRuntime(double)).memory

    assert told(tmp_path / "other") == ()
    monkeypatch.setattr("ortdeploy.jobs.job_statistics.resident_memory", lambda: 2**19)
    (text,) = told(tmp_path)
    assert text.endswith("of memory, and 1.0 MiB were forecast. limits: {memory: …} keeps it within a limit")
    assert f"run: {text}" in status_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "grows"), [(", pattern: true", True), ("", False)])
def test_onnx_runtime_keeps_memory_for_ever_new_shapes(tmp_path: Path, pattern: str, grows: bool) -> None:
    """An arena that shrinks after each run leaves the heap in fragments, if patterns ask for blocks of every size.

    In a process of its own: what other tests have freed in this one would take up all that is kept.
    """
    nodes, weights = [helper.make_node("MatMul", ["x", "w"], ["a0"])], {"w": np.full((8, 64), 1 / 64, np.float32)}
    for layer in range(6):
        a, t, s, p = (f"{name}{layer}" for name in "atsp")
        nodes += [
            helper.make_node("Transpose", [a], [t], perm=[0, 2, 1]),
            helper.make_node("MatMul", [a, t], [s]),
            helper.make_node("Softmax", [s], [p]),
            helper.make_node("MatMul", [p, a], [f"a{layer + 1}"]),
        ]
    nodes.append(helper.make_node("ReduceMean", ["a6"], ["y"], axes=[1], keepdims=0))
    inputs: dict[str, tuple[int, list[int | str | None]]] = {"x": (TensorProto.FLOAT, ["rows", "words", 8])}
    save_model(tmp_path / "m.onnx", nodes, inputs, {"y": (TensorProto.FLOAT, ["rows", 64])}, weights)
    sizes = random.Random(0)  # noqa: S311  sizes, not secrets
    lines = [{"x": [[1] * 8] * sizes.randrange(8, 900)} for _ in range(360)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "m.yaml").write_text(
        f"version: 1\nmodels: {{m: {{path: m.onnx, checks: [], memory: {{shrink_after_run: true{pattern}}}}}}}\n"
        "jobs: {run: {model: m, input: {path: rows.jsonl}, batch: {size: 1}, output: {path: out, rows_per_part: 2}}}\n"
    )
    command = [sys.executable, "-c", MEASURED_AFTER_EACH_BLOCK, "apply", str(tmp_path / "m.yaml")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("memory: lean" in done.stdout) == grows, report(tmp_path)["samples"]
