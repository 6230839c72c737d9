"""`on_end:` tells a command or a server how an apply has ended, and changes nothing by that."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import MANIFEST, REPOSITORY, Cli
from support.web import running

from ortdeploy.cli.output import on_end
from ortdeploy.results.results import JobResult, Status

NEVER = """
    pause: {below: {free_disk: 1000000GiB}}
"""
NOTE = "import sys; open('told', 'ab').write(sys.stdin.buffer.read() + b'\\n')"


def write(folder: Path, calls: dict[str, Any], more: str = "") -> None:
    (folder / "m.yaml").write_text(f"{MANIFEST}{more}on_end: {json.dumps(calls)}\n")


def told(folder: Path) -> list[dict[str, Any]]:
    path = folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


PROGRAM = Path(sys.executable).name
COMMAND = {"command": [PROGRAM, "-c", NOTE]}


@pytest.fixture
def here(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(deployment)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    return deployment


def test_nobody_is_told_of_what_went_well(here: Path, cli: Cli) -> None:
    write(here, COMMAND)
    assert cli("apply", "m.yaml").code == 0
    assert cli("apply", "m.yaml").code == 0
    assert told(here) == []


def test_a_command_gets_a_failed_job_with_its_report(here: Path, cli: Cli) -> None:
    np.save(here / "data.npy", np.full((20, 4), np.nan, np.float32))
    write(here, COMMAND, "    errors: {on_nan: fail}\n")
    assert cli("apply", "m.yaml", "-q").code == 1
    (message,) = told(here)
    assert (message["format_version"], message["deployment"], message["exit_code"]) == (1, "demo", 1)
    (job,) = message["jobs"]
    assert (job["job"], job["status"]) == ("run", "failed")
    assert json.loads(Path(job["report"]).read_text())["reason"] == job["reason"]
    assert cli("retry", "m.yaml", "--job", "run").code in {0, 1}
    assert len(told(here)) == 1


def test_memory_that_grew_is_told() -> None:
    result = JobResult(job="run", status=Status.DONE, output="out", memory=("memory grows by 1.0 MiB per 1,000 rows",))
    spec, plan = SimpleNamespace(name="demo", path="m.yaml"), SimpleNamespace(steps=(), finished=(), folder="gone")
    message = on_end.message(cast("Any", spec), "ran", (), [(cast("Any", plan), [result])])
    assert message["jobs"][0]["memory"] == ["memory grows by 1.0 MiB per 1,000 rows"]


def test_a_command_gets_the_environment_that_the_user_has(here: Path) -> None:
    show = "import json, os, sys; sys.stdin.read(); open('told', 'w').write(json.dumps(dict(os.environ)))"
    write(here, {"command": [PROGRAM, "-c", show]}, NEVER)
    own = {"ARROW_DEFAULT_MEMORY_POOL": "mimalloc", "PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "ortdeploy", "apply", "m.yaml"]
    assert subprocess.run(command, cwd=here, env=own, capture_output=True, check=False).returncode == 5
    (seen,) = told(here)
    assert {name: seen.get(name) for name in (*own, "OPENBLAS_NUM_THREADS")} == {**own, "OPENBLAS_NUM_THREADS": None}


def test_a_pause_is_told_as_5(here: Path, cli: Cli) -> None:
    write(here, COMMAND, NEVER)
    assert cli("apply", "m.yaml").code == 5
    (message,) = told(here)
    assert (message["exit_code"], message["jobs"][0]["status"]) == (5, "paused")
    assert message["jobs"][0]["report"] is None


def test_what_repeats_is_told_once_until_it_ends_in_another_way(here: Path, cli: Cli) -> None:
    write(here, COMMAND)
    text = (here / "m.yaml").read_text()
    for pause, code in ((1000000, 5), (2000000, 5), (0, 0), (1000000, 5)):
        with_pause = text.replace("on_end:", f"    pause: {{below: {{free_disk: {pause}GiB}}}}\non_end:")
        (here / "m.yaml").write_text(with_pause if pause else text)
        assert cli("apply", "m.yaml", "--new-run").code == code
        np.save(here / "data.npy", np.full((20, 4), pause, np.float32))
    assert [one["exit_code"] for one in told(here)] == [5, 5]
    (here / "m.yaml").write_text(text.replace("double.onnx", "gone.onnx"))
    assert cli("apply", "m.yaml").code == 1
    assert [one["exit_code"] for one in told(here)] == [5, 5, 1]


def test_a_refusal_is_told_also_by_what_ran_well_before(here: Path, cli: Cli) -> None:
    write(here, COMMAND)
    (here / "double.onnx").rename(here / "gone.onnx")
    assert cli("apply", "m.yaml").code == 1
    (message,) = told(here)
    assert message["refused"][0].startswith("unreadable-model: ")
    assert message["jobs"] == []
    (here / "gone.onnx").rename(here / "double.onnx")
    assert cli("apply", "m.yaml", "--last-good").code == 0
    (here / "m.yaml").write_text("jobz: 1\n")
    assert cli("apply", "m.yaml", "--last-good").code == 1
    message = told(here)[-1]
    assert message["refused"][0].startswith("missing-key: ")
    assert message["jobs"][0]["status"] == "nothing-to-do"


def endings(folder: Path) -> list[tuple[str, int]]:
    return [(one["ending"], one["exit_code"]) for one in told(folder)]


def test_when_names_the_endings_that_are_told(here: Path, cli: Cli) -> None:
    write(here, {**COMMAND, "when": ["refused", "recovered", "ran"]})
    assert cli("apply", "m.yaml").code == 0
    assert cli("apply", "m.yaml").code == 0
    assert endings(here) == [("ran", 0)], "the second apply ran nothing"
    text = (here / "m.yaml").read_text()
    for _ in range(2):
        (here / "m.yaml").write_text(text.replace("double.onnx", "gone.onnx"))
        assert cli("apply", "m.yaml").code == 1
    (here / "m.yaml").write_text(text)
    for _ in range(2):
        assert cli("apply", "m.yaml").code == 0
    assert endings(here) == [("ran", 0), ("refused", 1), ("recovered", 0)]


def test_what_is_not_told_is_recovered_from_all_the_same(here: Path, cli: Cli) -> None:
    write(here, {**COMMAND, "when": ["recovered"]}, NEVER)
    assert cli("apply", "m.yaml").code == 5
    assert endings(here) == []
    write(here, {**COMMAND, "when": ["recovered"]})
    assert cli("apply", "m.yaml").code == 0
    assert endings(here) == [("recovered", 0)]


def test_a_recovery_that_could_not_be_told_is_told_by_the_next_apply(here: Path, cli: Cli) -> None:
    write(here, {**COMMAND, "when": ["recovered"]}, NEVER)
    assert cli("apply", "m.yaml").code == 5
    write(here, {"command": ["./gone.sh"], "when": ["recovered"]})
    assert cli("apply", "m.yaml").code == 0
    write(here, {**COMMAND, "when": ["recovered"]})
    assert cli("apply", "m.yaml").code == 0
    assert endings(here) == [("recovered", 0)]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; print('no mail server'); sys.exit(3)", "it ended with code 3: no mail server"),
        ("import signal; signal.pause()", "it took longer than 0.2 s and was ended"),
    ],
)
def test_a_command_that_fails_is_logged_and_changes_no_exit_code(
    here: Path, cli: Cli, program: str, reason: str
) -> None:
    write(here, {"command": [PROGRAM, "-c", program], "timeout": "0.2s" if "pause" in program else 30}, NEVER)
    assert cli("apply", "m.yaml", "--log-format", "json", "--log-file", "log").code == 5
    (event,) = [one for one in map(json.loads, (here / "log").read_text().splitlines()) if "on_end" in one["event"]]
    assert (event["event"], event["by"], event["reason"]) == ("on_end.failed", "command", reason)


def test_a_program_that_there_is_not_is_logged(here: Path, cli: Cli) -> None:
    write(here, {"command": ["./alarm.sh"]}, NEVER)
    assert cli("apply", "m.yaml", "--log-format", "json", "--log-file", "log").code == 5
    assert "on_end.failed" in (here / "log").read_text()


def test_a_server_gets_the_same_and_its_path_is_a_secret(here: Path, cli: Cli) -> None:
    with running() as server:
        write(here, {"url": server.url("/services/T0SECRET/hook")}, NEVER)
        shown = cli("apply", "m.yaml", "-v", "--log-format", "json", "--log-file", "log")
        assert shown.code == 5
        server.replies["/services/T0SECRET/hook"] = (204, {}, b"")
        for _ in range(2):  # it is tried again until it is told, and no further
            assert cli("apply", "m.yaml", "-v", "--log-format", "json", "--log-file", "log").code == 5
        assert [json.loads(one)["exit_code"] for one in server.posted] == [5, 5]
    log = (here / "log").read_text()
    assert "on_end.called" in log
    assert "the server answers 404" in log
    cli("plan", "m.yaml", "--out", "plan.json")
    (here / "other.yaml").write_text((here / "m.yaml").read_text().replace("T0SECRET", "T1SECRET"))
    difference = cli("diff", "m.yaml", "other.yaml")
    everything = log + shown.out + shown.err + (here / "plan.json").read_text() + difference.out + difference.err
    assert "SECRET" not in everything
    assert b"SECRET" not in b"".join(path.read_bytes() for path in (here / ".ortdeploy").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("on_end", "rule"),
    [
        ({"url": "s3://bucket/hook"}, "refused-url"),
        ({"url": "file:///etc/passwd"}, "refused-url"),
        ({"url": "http://169.254.169.254/latest"}, "refused-url"),
        ({"url": "hook"}, "refused-url"),
        ({"command": ["../alarm.sh"]}, "path-outside-tree"),
        ({"command": ["/usr/bin/env"]}, "path-outside-tree"),
        ({"timeout": "30s"}, "missing-key"),
        ({"command": []}, "value-not-allowed"),
    ],
)
def test_who_may_not_be_told_is_refused(here: Path, cli: Cli, on_end: dict[str, Any], rule: str) -> None:
    write(here, on_end)
    refused = cli("validate", "m.yaml")
    assert refused.code == 1
    assert f"error[{rule}]" in refused.out + refused.err
