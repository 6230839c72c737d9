"""kill -9 at any moment: the next run goes on, and the end is what an undisturbed run leaves, byte for byte."""

import json
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
from support.effort import effort
from support.models import TRAPS, crashing_model, scale_model

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
    assert "run.watched" not in result.err
    assert kills > KILLS / 2
    assert parts(killed) == parts(whole)
    assert not list((killed / "outbox/run").glob(".*"))


def prepare_crash(folder: Path) -> None:
    """400 rows, of which row 150 crashes native code and may fail.

    The model's rows are not compared by other batches, so nothing tries it in a child of its own before.
    """
    crashing_model(folder / "double.onnx")
    rows = np.arange(1, 401).repeat(4).reshape(-1, 4)
    rows[150] = -1
    np.save(folder / "data.npy", rows)
    text = TEXT.replace("double.onnx}", "double.onnx, row_independence: false}")
    (folder / "m.yaml").write_text(f"{text}    errors: {{max_failed: 1}}\n")


@TRAPS
def test_a_row_that_crashes_native_code_becomes_a_dead_letter_of_the_next_apply(tmp_path: Path) -> None:
    prepare_crash(tmp_path)
    first = start(tmp_path)
    _, said = first.communicate()
    assert first.returncode == -signal.SIGFPE, said
    check_whole_parts(tmp_path)
    assert run_fork(["status", "m.yaml", "--format", "json"], cwd=tmp_path).json["jobs"][0]["status"] == "stopped"
    result = run_fork(["apply", "m.yaml"], cwd=tmp_path)
    assert result.code == 0, result.err
    events = [json.loads(line) for line in result.err.splitlines() if line.startswith("{")]
    assert "lock.was_left" in {one["event"] for one in events}
    (watched,) = [one for one in events if one["event"] == "run.watched"]
    assert (
        watched["reason"].replace("-", " ") == "Fatal Python error: Floating point exception"
    )  # as of 3.13 with a hyphen
    crashes = [(one["first"], one["last"]) for one in events if one["event"] == "run.crashed"]
    assert crashes == [(150, 151), (150, 150)]
    (letter,) = [json.loads(line) for line in (tmp_path / "outbox/run/_failed.jsonl").read_text().splitlines()]
    assert (letter["row"], letter["stage"], letter["code"]) == (150, "run", "crashed")
    assert letter["message"] == "the process that ran it was ended by SIGFPE"
    committed = [json.loads(line)["row"] for content in parts(tmp_path).values() for line in content.splitlines()]
    assert committed == [row for row in range(400) if row != 150]
    assert not list((tmp_path / "outbox/run").glob(".*"))
    assert run_fork(["verify", "m.yaml"], cwd=tmp_path).code == 0


@pytest.mark.slow
@TRAPS
def test_a_row_that_crashes_native_code_becomes_a_dead_letter_of_the_next_run_of_its_shard(tmp_path: Path) -> None:
    prepare_crash(tmp_path)
    assert run_fork(["plan", "m.yaml", "--out", "plan.json"], cwd=tmp_path).code == 0
    shards = [["apply", "plan.json", "--shard", f"{index}/2"] for index in range(2)]
    assert run_fork(shards[1], cwd=tmp_path).code == -signal.SIGFPE
    other = run_fork(shards[0], cwd=tmp_path)
    assert (other.code, "run.watched" in other.err) == (0, False), other.err
    again = run_fork(shards[1], cwd=tmp_path)
    assert again.code == 0, again.err
    events = [json.loads(line) for line in again.err.splitlines() if line.startswith("{")]
    crashes = [(one["first"], one["last"]) for one in events if one["event"] == "run.crashed"]
    assert crashes == [(150, 151), (150, 150)]
    assert run_fork(["finish", "plan.json"], cwd=tmp_path).code == 0
    (letter,) = [json.loads(line) for line in (tmp_path / "outbox/run/_failed.jsonl").read_text().splitlines()]
    assert (letter["row"], letter["stage"], letter["code"]) == (150, "run", "crashed")
    assert not list((tmp_path / ".ortdeploy/locks").glob("*.json"))


def check_whole_parts(folder: Path) -> None:
    """Whatever has its final name is whole, and status can be asked at any time."""
    assert all(content.count(b"\n") == 100 for content in parts(folder).values())
    status = run_fork(["status", "m.yaml", "--format", "json"], cwd=folder)
    assert status.code == 0, status.err
    assert status.json["jobs"][0]["status"] in {"never-run", "unfinished", "stopped", "done"}


@pytest.mark.quick("jsonl-6")
@pytest.mark.parametrize(("kind", "kills"), [("jsonl", 6), ("jsonl", 10), ("carried", 10), ("parquet", 10)])
def test_kills_within_a_run_and_a_retry_leave_what_an_undisturbed_one_does(
    tmp_path: Path, kind: str, kills: int
) -> None:
    assert killed_runs(tmp_path, kind, kills=kills) >= kills


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "carried"])
def test_many_kills(tmp_path: Path, kind: str) -> None:
    kills = effort(30, 300)
    assert killed_runs(tmp_path, kind, kills=kills) >= kills


def killed_runs(folder: Path, kind: str, kills: int) -> int:
    """Run `support.killed_runs`; return how many processes it has killed."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "support.killed_runs", str(folder), kind, str(kills), "7"]
    done = subprocess.run(command, cwd=tests, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.splitlines()[-1].split()[0])
