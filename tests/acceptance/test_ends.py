"""Whatever ends a command, its user reads why: what it was doing, on which model, job and rows, and what to do next."""

import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import MANIFEST, read_rows, run_fork
from support.effort import effort
from support.forks import CAN_FORK, Fork, be_the_program, programs_as_forks, start_program
from support.models import TRAPS, crashing_model

from ortdeploy import api
from ortdeploy.__main__ import run
from ortdeploy.cli.command_line.arguments import COMMANDS
from ortdeploy.diagnostics import OrtdeployError

pytestmark = [pytest.mark.skipif(not CAN_FORK, reason="only a fork is watched"), pytest.mark.process]

AGAIN = (
    "What is committed stays. Give the same apply again: it looks for the rows that crash, notes them as failed rows"
)
UNPROVEN = MANIFEST.replace("double.onnx}", "double.onnx, row_independence: false}")


def deploy_crash(folder: Path) -> None:
    """20 rows, of which row 13 crashes native code and may fail.

    The model's rows are not compared by other batches, so nothing tries it in a child of its own before.
    """
    crashing_model(folder / "double.onnx")
    rows = np.arange(1, 21).repeat(4).reshape(-1, 4)
    rows[13] = -1
    np.save(folder / "data.npy", rows)
    (folder / "m.yaml").write_text(f"{UNPROVEN}    errors: {{max_failed: 1}}\n")


@TRAPS
def test_a_crash_of_apply_is_told_with_its_rows_and_the_next_one_goes_on(tmp_path: Path) -> None:
    deploy_crash(tmp_path)
    first = run_fork(["apply", "m.yaml"], cwd=tmp_path)
    assert first.code == -signal.SIGFPE
    where = 'the process that ran rows 8 to 15 of job run on session double of model "double" was ended by SIGFPE'
    assert f"ortdeploy: {where}" in first.err
    assert AGAIN in first.err
    again = run_fork(["apply", "m.yaml"], cwd=tmp_path)
    assert again.code == 0, again.err
    assert "ortdeploy: " not in again.err
    assert [row["row"] for row in read_rows(tmp_path / "outbox/run")] == [row for row in range(20) if row != 13]


@TRAPS
@pytest.mark.opens_models
def test_a_try_goes_on_without_the_rows_that_crash(tmp_path: Path) -> None:
    deploy_crash(tmp_path)
    tried = run_fork(["try", "m.yaml", "--format", "json"], cwd=tmp_path)
    assert tried.code == 1, tried.err
    assert "Traceback" not in tried.err
    (job,) = tried.json["jobs"]
    assert [row["row"] for row in job["rows"]] == [row for row in range(20) if row != 13]
    assert (job["status"], job["failed"]) == ("done", 1)
    shown = run_fork(["try", "m.yaml"], cwd=tmp_path)
    assert "the process that ran it was ended by SIGFPE" in shown.out
    (tmp_path / "m.yaml").write_text(UNPROVEN)  # no row may fail
    refused = run_fork(["try", "m.yaml"], cwd=tmp_path)
    assert refused.code == 1
    assert "SIGFPE" in refused.out


@TRAPS
def test_a_crash_is_told_by_the_python_api_in_the_same_words(tmp_path: Path) -> None:
    deploy_crash(tmp_path)
    with programs_as_forks():
        with pytest.raises(OrtdeployError) as failure:
            api.apply(tmp_path / "m.yaml")
        assert "rows 8 to 15 of job run on session double of model" in str(failure.value)
        assert AGAIN in str(failure.value)
        assert api.apply(tmp_path / "m.yaml").jobs[0].failed == 1


@pytest.mark.quick("plan-SIGSEGV", "apply-SIGKILL")
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_end_of_any_command_is_told(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(signal, name)
    monkeypatch.setattr("ortdeploy.cli.main._parse", lambda *_: Namespace(command=command))
    monkeypatch.setattr("ortdeploy.cli.main._answer_before_planning", lambda _: None)
    loading = SimpleNamespace(import_module=lambda _: os.kill(os.getpid(), number))
    monkeypatch.setattr("ortdeploy.cli.main.importlib", loading)
    done = run_fork([command], cwd=tmp_path)
    assert done.code == -number
    assert done.err.startswith(f"ortdeploy: the process that ran ortdeploy {command} was ")
    assert done.err.count("\n") == 1


class Dropped:
    """An object whose end sends this process a signal: Python drops what is raised meanwhile."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))


def interrupted_in_a_fork() -> None:
    os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))


def interrupted_as_an_object_goes() -> None:
    held = [Dropped()]
    sys.addaudithook(lambda event, _: held.clear() if event == "open" else None)


@pytest.mark.parametrize("begin", [interrupted_in_a_fork, interrupted_as_an_object_goes])
def test_ctrl_c_is_obeyed_where_python_drops_exceptions(begin: Callable[[], None], deployment: Path) -> None:
    np.save(deployment / "data.npy", np.zeros((200_000, 4), np.float32))

    def do() -> None:
        begin()
        be_the_program(["apply", "m.yaml"])

    with Fork(
        do, cwd=deployment, env=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        _, said = process.communicate()
    assert "Traceback" not in said, said
    assert process.returncode == 130, said


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def interrupted_as_a_class_is_made(*_: object) -> None:
    try:
        interrupted()
    except KeyboardInterrupt as cause:
        raise RuntimeError("Error calling __set_name__") from cause  # as Python 3.11 does


@pytest.mark.parametrize(
    ("place", "do"),
    [("set_up_libraries", interrupted), ("_end", interrupted), ("_parse", interrupted_as_a_class_is_made)],
)
def test_ctrl_c_leaves_no_traceback_before_and_after_the_command(
    place: str, do: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"ortdeploy.cli.main.{place}", do)
    done = run_fork(["status", "--help"], cwd=tmp_path)
    assert (done.code, done.err) == (130, "")


def test_ctrl_c_leaves_no_traceback_while_the_program_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        find_spec = staticmethod(interrupted)

    monkeypatch.delitem(sys.modules, "ortdeploy.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_a_run_that_is_ended_at_any_moment_says_so_and_its_rows_are_whole_in_the_end(tmp_path: Path, seed: int) -> None:
    deploy_crash(tmp_path)
    np.save(tmp_path / "data.npy", np.arange(1, 8001).repeat(4).reshape(-1, 4))
    moments = random.Random(seed)  # noqa: S311  moments, not secrets
    told = 0
    for _ in range(effort(12, 400)):
        if not (tmp_path / "outbox").exists():  # in a child that is watched, or in this process
            (tmp_path / "m.yaml").write_text(moments.choice([MANIFEST, UNPROVEN]))
        number = moments.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGINT])
        process = start_program(
            ["apply", "m.yaml"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
        )
        try:
            process.wait(moments.uniform(0.2, 1.5))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        _, said = process.communicate()
        assert "Traceback" not in said, said
        code = process.returncode
        if code in {-number, 128 + number} and number not in {signal.SIGTERM, signal.SIGINT}:
            is_told = "ortdeploy: the process that " in said
            is_watched = bool(said)  # a process that has said nothing may have been too slow to begin
            assert is_told or not is_watched or '"event": "run.finished"' in said, (code, said)  # about to end
            told += is_told
        else:
            assert code in {0, -number, 128 + number}, (code, said)
        if code == 0:
            assert [row["row"] for row in read_rows(tmp_path / "outbox/run")] == list(range(8000))
            shutil.rmtree(tmp_path / "outbox")
            shutil.rmtree(tmp_path / ".ortdeploy")
    assert told
    again = run_fork(["apply", "m.yaml"], cwd=tmp_path)
    assert again.code == 0, again.err
    assert [row["row"] for row in read_rows(tmp_path / "outbox/run")] == list(range(8000))


THREE = """\
version: 1
models: {a: {path: double.onnx}, b: {path: double.onnx}, c: {path: double.onnx}}
jobs:
  one: {model: a, input: {path: data.npy, key: [row]}, batch: {size: 8}, output: {path: out/one, format: jsonl}}
  two: {model: b, input: {path: data.npy, key: [row]}, batch: {size: 8}, output: {path: out/two, format: jsonl}}
  three: {model: c, input: {path: data.npy, key: [row]}, batch: {size: 8}, output: {path: out/three, format: jsonl}}
"""
STAGES = {
    "opening": "ortdeploy.runtime.session._open",
    "taking the lock": "ortdeploy.ledger.output_lock._write_holder",
    "first rows": "ortdeploy.sessions.runs.SessionRuns.run_each",
    "reading": "ortdeploy.jobs.job.open_rows",
    "writing": "ortdeploy.ledger.ledger.Ledger.commit_part",
    "between jobs": "ortdeploy.jobs.job.log_end",
}


@pytest.mark.quick("SIGTERM-opening", "SIGINT-between jobs")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_at_any_stage_opens_nothing_more(
    name: str, stage: str, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deployment / "m.yaml").write_text(THREE)
    begun, opened = deployment / "begun", deployment / "opened"

    def signalled(do: Callable[..., object]) -> Callable[..., object]:
        def then(*given: object, **named: object) -> object:
            if not begun.exists():
                begun.touch()
                os.kill(os.getpid(), getattr(signal, name))
            return do(*given, **named)

        return then

    def noted(do: Callable[..., object]) -> Callable[..., object]:
        def then(*given: object, **named: object) -> object:
            if begun.exists():
                opened.write_text(f"{opened.read_text() if opened.exists() else ''}.")
            return do(*given, **named)

        return then

    for place, wrap in ((STAGES["opening"], noted), (STAGES[stage], signalled)):
        module, _, function = place.rpartition(".")
        holder = pkgutil.resolve_name(module)
        monkeypatch.setattr(holder, function, wrap(getattr(holder, function)))
    done = run_fork(["apply", "m.yaml", "--format", "json"], cwd=deployment)
    assert done.code == 128 + getattr(signal, name), done.err
    assert "Traceback" not in done.err
    assert "interrupted" in {job["status"] for job in done.json["jobs"]}
    assert len(done.json["jobs"]) == 3
    assert not opened.exists() or opened.read_text() == ("." if stage == "opening" else "")
    monkeypatch.undo()
    again = run_fork(["apply", "m.yaml"], cwd=deployment)
    assert again.code == 0, again.err
    assert all(len(read_rows(deployment / "out" / job)) == 20 for job in ("one", "two", "three"))


def test_who_has_nothing_to_do_is_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork would be a tenth of what such a command takes."""
    monkeypatch.setattr("ortdeploy.cli.main._parse", lambda *_: Namespace(command="apply"))
    monkeypatch.setattr("ortdeploy.cli.main._answer_before_planning", lambda _: "nothing to do\n")
    monkeypatch.setattr("ortdeploy.process.last_words.begin", pytest.fail)
    done = run_fork(["apply"], cwd=tmp_path)
    assert (done.code, done.out) == (0, "nothing to do\n")
