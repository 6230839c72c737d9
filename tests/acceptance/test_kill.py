"""kill -9 at any moment: the next run goes on, and the end is what an undisturbed run leaves, byte for byte."""

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, run_fork
from support import forks
from support.models import scale_model

from ortdeploy.runtime.session import OrtSession

ROWS, KILLS = 6_000, 20
TEXT = MANIFEST.replace("size: 8", "size: 2").replace("format: jsonl", "format: jsonl, rows_per_part: 100")


def prepare(folder: Path, rows: int = ROWS) -> Path:
    folder.mkdir()
    scale_model(folder / "double.onnx")
    np.save(folder / "data.npy", np.arange(rows * 4, dtype=np.float32).reshape(rows, 4))
    (folder / "m.yaml").write_text(TEXT)
    return folder


def start(folder: Path) -> Any:
    return forks.start_program(
        ["apply", "m.yaml"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    )


def kill_after(process: "subprocess.Popen[str]", commits: int, spins: int) -> bool:
    """Kill a run a moment after so many commits; return whether it was still alive."""
    assert process.stderr is not None
    with process.stderr as log:
        for line in log:
            commits -= "part.committed" in line
            if commits <= 0:
                break
        for _ in range(spins):
            pass
        alive = process.poll() is None
        process.kill()
        process.wait()
    return alive


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "outbox/run").glob("part-*"))}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path, seed: int) -> None:
    whole = prepare(tmp_path / "whole")
    assert run_fork(["apply", "m.yaml"], cwd=whole).code == 0
    killed = prepare(tmp_path / "killed")
    moments = random.Random(seed)  # noqa: S311  moments, not secrets
    kills = 0
    while kills < KILLS and kill_after(start(killed), moments.randint(0, 3), moments.randint(0, 300_000)):
        kills += 1
        check_whole_parts(killed)
    result = run_fork(["apply", "m.yaml"], cwd=killed)
    assert result.code == 0, result.err
    assert kills > KILLS / 2
    assert parts(killed) == parts(whole)
    assert not list((killed / "outbox/run").glob(".*"))


@pytest.mark.skipif(not forks.CAN_FORK, reason="needs a fork of this process, in which a model crashes")
def test_after_a_crash_of_native_code_the_next_apply_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepare(tmp_path / "whole", rows=2000)
    assert run_fork(["apply", "m.yaml"], cwd=whole).code == 0
    crashed = prepare(tmp_path / "crashed", rows=2000)
    real = OrtSession.run

    def run(self: OrtSession, outputs: Any, feeds: Any, adapters: Any) -> Any:
        if float(next(iter(feeds.values())).flat[0]) > 6000:
            signal.raise_signal(signal.SIGSEGV)
        return real(self, outputs, feeds, adapters)

    with monkeypatch.context() as patch:
        patch.setattr(OrtSession, "run", run)
        process = start(crashed)
        _, said = process.communicate()
        assert process.returncode == -signal.SIGSEGV, said
    check_whole_parts(crashed)
    assert 0 < len(parts(crashed)) < len(parts(whole))
    assert run_fork(["status", "m.yaml", "--format", "json"], cwd=crashed).json["jobs"][0]["status"] == "stopped"
    result = run_fork(["apply", "m.yaml"], cwd=crashed)
    assert result.code == 0, result.err
    assert '"event": "lock.was_left"' in result.err
    assert parts(crashed) == parts(whole)


def check_whole_parts(folder: Path) -> None:
    """Whatever has its final name is whole, and status can be asked at any time."""
    assert all(content.count(b"\n") == 100 for content in parts(folder).values())
    status = run_fork(["status", "m.yaml", "--format", "json"], cwd=folder)
    assert status.code == 0, status.err
    assert status.json["jobs"][0]["status"] in {"never-run", "stopped", "done"}


@pytest.mark.parametrize("kind", ["jsonl", "carried", pytest.param("parquet", marks=pytest.mark.slow)])
def test_kills_within_a_run_and_a_retry_leave_what_an_undisturbed_one_does(tmp_path: Path, kind: str) -> None:
    assert killed_runs(tmp_path, kind, kills=20) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "carried"])
def test_three_hundred_kills(tmp_path: Path, kind: str) -> None:
    assert killed_runs(tmp_path, kind, kills=300) >= 300


def killed_runs(folder: Path, kind: str, kills: int) -> int:
    """Run `support.killed_runs`; return how many processes it has killed."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "support.killed_runs", str(folder), kind, str(kills), "7"]
    done = subprocess.run(command, cwd=tests, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.splitlines()[-1].split()[0])
