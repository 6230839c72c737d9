"""A full disk, too little memory, files that change and a clock that jumps: clear words, and nothing lost."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from conftest import MANIFEST, Cli, read_rows, run_fork
from onnx import TensorProto, helper, numpy_helper
from onnx import save as save_model
from support.fakes import FakeRuntime, double
from support.jobs import execute, plan_for, rows, save
from support.models import scale_model

from ortdeploy.jobs import job as job_run
from ortdeploy.ledger import ledger
from ortdeploy.results.results import Status


def mount(folder: Path, options: str) -> bool:
    """Mount a small file system in memory; return whether this machine lets us."""
    if shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount(folder, "size=720k"):
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S607  where the system has it


@pytest.mark.quick("parquet")
@pytest.mark.parametrize("kind", ["jsonl", "npz", "parquet"])
def test_a_full_disk_ends_the_job_with_a_word_and_the_next_apply_goes_on(small_disk: Path, kind: str) -> None:
    scale_model(small_disk / "double.onnx")
    values = np.random.default_rng(0).normal(size=(20_000, 4)).astype(np.float32)
    np.save(small_disk / "data.npy", values)
    text = MANIFEST.replace("format: jsonl", f"format: {kind}, rows_per_part: 1000").replace("size: 8", "size: 100")
    (small_disk / "m.yaml").write_text(text)
    full = run_fork(["apply", "m.yaml"], cwd=small_disk)
    assert full.code == 1, full.err
    assert "No space left on device" in full.out + full.err or "database or disk is full" in full.out
    assert "make room on its disk" in full.out
    assert "Traceback" not in full.out + full.err
    for part in (small_disk / "outbox/run").glob("part-*"):
        assert part.stat().st_size > 0
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)  # noqa: S607  as above
    done = run_fork(["apply", "m.yaml"], cwd=small_disk)
    assert done.code == 0, done.err
    report = json.loads((small_disk / "outbox/run/_run.json").read_text())
    assert report["rows"] == {"input": 20_000, "committed": 20_000, "failed": 0, "skipped": 0}
    if kind == "jsonl":
        assert [row["row"] for row in read_rows(small_disk / "outbox/run")] == list(range(20_000))


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    save(tmp_path, range(40))

    def change(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        save(tmp_path, range(41))
        return double(feeds)

    result = execute(tmp_path, plan_for(tmp_path, 40), FakeRuntime(change))
    assert result.status is Status.FAILED
    assert "data.npy is not what it was when the plan was made" in (result.reason or "")
    assert "Apply again" in (result.reason or "")


@pytest.mark.parametrize("change", ["unlink", "cut"])
def test_a_part_that_is_taken_away_while_a_job_runs_is_named(tmp_path: Path, change: str) -> None:
    save(tmp_path, range(40))
    first = tmp_path / "out/part-00000000.jsonl"

    def disturb(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if first.is_file():
            first.unlink() if change == "unlink" else first.write_bytes(b"")
        return double(feeds)

    result = execute(tmp_path, plan_for(tmp_path, 40, rows_per_part=4), FakeRuntime(disturb))
    assert result.status is Status.FAILED
    how = "is gone" if change == "unlink" else "has 0 bytes instead of"
    assert f"out/part-00000000.jsonl was committed and {how}" in (result.reason or "")
    assert "while the job ran" in (result.reason or "")


@pytest.mark.process
def test_a_clock_that_jumps_back_disturbs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(400))
    clock = [datetime(2031, 1, 1, tzinfo=UTC)]

    def now() -> str:
        clock[0] -= timedelta(days=365)
        return clock[0].isoformat(timespec="milliseconds")

    for module in (ledger, job_run):
        monkeypatch.setattr(module, "now", now)
    seen: list[int] = []

    def count(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        seen.append(len(feeds["x"]))
        return double(feeds)

    plan = plan_for(tmp_path, 400)
    assert execute(tmp_path, plan, FakeRuntime(count), stop=lambda: len(seen) >= 2).status is Status.INTERRUPTED
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(400)]


@pytest.mark.slow
def test_two_new_runs_that_began_at_the_same_moment_are_both_kept(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ledger, job_run):
        monkeypatch.setattr(module, "now", lambda: "2026-01-01T00:00:00.000+00:00")
    for size in (8, 4, 2):
        (deployment / "m.yaml").write_text(MANIFEST.replace("size: 8", f"size: {size}"))
        assert cli("apply", deployment / "m.yaml", "--new-run").code == 0
    assert len(list((deployment / "outbox").iterdir())) == 3
    assert all(len(read_rows(folder)) == 20 for folder in (deployment / "outbox").iterdir())


def large_inside(path: Path) -> None:
    """A model whose rows need 8 MiB each inside, and one number outside."""
    wide = 2 * 1024 * 1024
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Exp", ["h"], ["e"]),
            helper.make_node("ReduceMean", ["e"], ["y"], axes=[1], keepdims=0),
        ],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
        [numpy_helper.from_array(np.full((1, wide), 1e-3, np.float32), "w")],
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))


LIMITED = """\
import resource, sys
import numpy, onnxruntime
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + {more} * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from ortdeploy.cli.main import main
sys.exit(main(["apply", "m.yaml"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc are Linux's")
def test_a_run_that_memory_is_too_small_for_is_halved_until_it_fits(tmp_path: Path) -> None:
    large_inside(tmp_path / "double.onnx")
    np.save(tmp_path / "data.npy", np.linspace(0, 1, 70, dtype=np.float32).reshape(70, 1))
    text = MANIFEST.replace("size: 8", "size: 64").replace(
        "{path: double.onnx}", "{path: double.onnx, session: {intra_op_num_threads: 1, enable_cpu_mem_arena: false}}"
    )
    (tmp_path / "m.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(more=700)],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    halved = [event["rows"] for event in events if event["event"] == "batch.halved"]
    assert halved[0] == 32, done.stderr
    found = read_rows(tmp_path / "outbox/run")
    assert [row["row"] for row in found] == list(range(70))
    assert found[69]["y"] == pytest.approx(np.exp(1e-3), rel=1e-2)  # a sum of two million floats


@pytest.mark.quick("jsonl", "parquet")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are Unicode")
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow", "npz"])
def test_rows_of_a_file_whose_name_is_not_utf8_are_written(deployment: Path, kind: str) -> None:
    (deployment / "data.npy").rename(deployment / "data\udcff.npy")
    text = MANIFEST.replace("data.npy, key: [row]", '"data*.npy", key: [path, row]')
    (deployment / "m.yaml").write_text(text.replace("jsonl", kind))
    done = run_fork(["apply", "m.yaml"], cwd=deployment)
    assert done.code == 0, done.out + done.err
    assert (deployment / "outbox/run" / f"part-00000000.{kind}").is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are Unicode")
def test_a_model_below_a_folder_whose_name_is_not_utf8_is_refused(deployment: Path) -> None:
    """ONNX Runtime's binding answers with the signatures of its constructors."""
    folder = deployment.rename(deployment.with_name("\udcff"))
    planned = run_fork(["plan", "m.yaml"], cwd=folder)
    assert planned.code == 1
    assert "ONNX Runtime opens only files whose path is UTF-8" in planned.out
