"""A real systemd and real power cuts, on a machine under qemu: `.ci/machine` makes it and runs these tests."""

import io
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import machine as machines
from support.machine import Machine
from support.models import scale_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(machines.WHY_NOT is not None, reason=str(machines.WHY_NOT)),
]

PROGRAM = "/opt/ortdeploy/bin/ortdeploy"
HOME = "/srv/demo"
MANIFEST = f"{HOME}/m.yaml"
ROWS, BAD = 400, 7
"""Rows of each file, and the one of them that fails."""
TEXT = """\
version: 1
name: demo
models: {double: {path: double.onnx}}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy, on_empty: done}
    batch: {size: 4}
    output: {path: outbox/run, format: jsonl, rows_per_part: 8}
    errors: {on_nan: fail, max_failed: 10%}
"""
CUTS, MOST_SECONDS, MOST_PARTS = 20, 20.0, 40
"""Power cuts, the seconds from the boot to a cut at most, and the parts that a run has committed before one."""


def rows_of(number: int) -> bytes:
    """Return the file of this number: rows of numbers that no other file has, but for the bad row."""
    first = number * ROWS
    rows = np.arange(first, first + ROWS, dtype=np.float32).repeat(4).reshape(-1, 4)
    rows[BAD] = np.nan
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def deploy(machine: Machine, folder: Path, *, text: str = TEXT, every: str = "") -> None:
    """Put a deployment and its units on a machine."""
    scale_model(folder / "double.onnx")
    machine.run(f"mkdir -p {HOME}/inbox")
    machine.write(f"{HOME}/double.onnx", (folder / "double.onnx").read_bytes())
    machine.write(MANIFEST, text.encode())
    machine.run(f"chown -R runner {HOME} && {PROGRAM} service {MANIFEST} {every} -o /etc/systemd/system")
    machine.run("systemctl daemon-reload && sync")


def arrive(machine: Machine, number: int) -> None:
    """Let a file arrive that no power cut takes away again."""
    machine.write(f"{HOME}/inbox/{number}.npy", rows_of(number))


def shown(machine: Machine, *properties: str, unit: str = "ortdeploy-demo") -> list[str]:
    """Return properties of a unit."""
    names = ",".join(properties)
    lines = machine.run(f"systemctl show {unit} -p {names}").out.splitlines()
    known = dict(line.split("=", 1) for line in lines)
    return [known[name] for name in properties]


def state(machine: Machine) -> dict[str, object]:
    """Return what `status` says of the job."""
    jobs: list[dict[str, object]] = json.loads(machine.run(f"{PROGRAM} status {MANIFEST} --format json").out)["jobs"]
    return jobs[0]


def wait_until_committed(machine: Machine, files: int) -> None:
    """Wait until every row of the files is committed or failed."""
    due = time.monotonic() + 600
    while (now := state(machine)).get("committed") != files * (ROWS - 1) or now["status"] != "done":
        assert time.monotonic() < due, now
        time.sleep(1)
    assert now["failed"] == files


def check_rows(machine: Machine, files: int) -> None:
    """Every row is in a part exactly once, or the bad one of its file in the dead letters; and nothing is damaged."""
    lines = machine.run(f"cat {HOME}/outbox/run/part-*").out.splitlines()
    found = [json.loads(line)["y"][0] / 2 for line in lines]
    assert sorted(found) == [number for number in range(files * ROWS) if number % ROWS != BAD]
    letters = [json.loads(line) for line in machine.run(f"cat {HOME}/outbox/run/_failed.jsonl").out.splitlines()]
    assert sorted((one["path"], one["row_in_file"]) for one in letters) == sorted(
        (f"inbox/{number}.npy", BAD) for number in range(files)
    )
    machine.run(f"{PROGRAM} verify {MANIFEST}")
    sound = "PRAGMA integrity_check"
    opened = f"sqlite3.connect('{HOME}/.ortdeploy/state.db')"
    assert (
        machine.run(f"python3 -c \"import sqlite3; print({opened}.execute('{sound}').fetchall())\"").out
        == "[('ok',)]\n"
    )
    assert not machine.run(f"find {HOME}/outbox -name '.*'").out
    assert "EXT4-fs error" not in machine.run("dmesg").out


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which `watch` runs, with less patience than the units have."""
    folder = tmp_path_factory.mktemp("machine")
    with Machine(folder) as machine:
        deploy(machine, folder)
        machine.write(
            "/etc/systemd/system/ortdeploy-demo.service.d/hasty.conf", b"[Service]\nWatchdogSec=20\nRestartSec=1\n"
        )
        machine.run("systemctl daemon-reload && systemctl enable --now ortdeploy-demo")
        yield machine


def test_systemd_starts_it_once_it_is_ready_and_shows_its_state(watching: Machine) -> None:
    assert shown(watching, "ActiveState", "NRestarts", "User") == ["active", "0", "runner"]
    assert '"event": "watch.started"' in watching.run("journalctl -u ortdeploy-demo -o cat").out
    arrive(watching, 0)
    wait_until_committed(watching, 1)
    watching.wait_for("systemctl show ortdeploy-demo -p StatusText | grep 'exit code 0'")
    check_rows(watching, 1)


def test_the_watchdog_leaves_one_that_rests_alone_and_restarts_one_that_hangs(watching: Machine) -> None:
    fed = "systemctl show ortdeploy-demo -p WatchdogTimestampMonotonic"
    before = watching.run(fed).out
    watching.wait_for(f"test '{before.strip()}' != \"$({fed})\"")
    assert shown(watching, "NRestarts") == ["0"]
    watching.run("kill -STOP $(systemctl show -P MainPID ortdeploy-demo)")
    watching.wait_for("test $(systemctl show -P NRestarts ortdeploy-demo) = 1")
    watching.wait_for("systemctl is-active ortdeploy-demo")
    assert "Failed with result 'watchdog'" in watching.run("journalctl -u ortdeploy-demo -o cat").out


def test_it_is_restarted_after_a_kill_in_the_middle_of_a_job(watching: Machine) -> None:
    parts = f"$(ls {HOME}/outbox/run | grep -c part)"
    before = watching.run(f"echo {parts}").out.strip()
    arrive(watching, 1)
    watching.wait_for(f"test {parts} -gt $(({before} + 5))")
    watching.run("kill -9 $(systemctl show -P MainPID ortdeploy-demo)")
    watching.wait_for("test $(systemctl show -P NRestarts ortdeploy-demo) = 2")
    wait_until_committed(watching, 2)
    check_rows(watching, 2)


def test_a_stop_in_the_middle_of_a_job_commits_and_the_next_start_goes_on(watching: Machine) -> None:
    parts = f"$(ls {HOME}/outbox/run | grep -c part)"
    before = watching.run(f"echo {parts}").out.strip()
    arrive(watching, 2)
    watching.wait_for(f"test {parts} -gt $(({before} + 5))")
    watching.run("systemctl stop ortdeploy-demo")
    assert shown(watching, "ActiveState", "Result", "NRestarts") == ["inactive", "success", "2"]
    assert not watching.run("pgrep -u runner", fails=True).out
    now = state(watching)
    assert now["status"] in {"interrupted", "done"}
    watching.run("systemctl start ortdeploy-demo")
    wait_until_committed(watching, 3)
    check_rows(watching, 3)


def test_a_timer_applies_again_and_again_and_a_paused_job_is_no_failure(tmp_path: Path) -> None:
    paused = TEXT + "    pause: {below: {free_disk: 1000GiB}}\n"
    with Machine(tmp_path) as machine:
        deploy(machine, tmp_path, text=paused, every="--every 5s")
        arrive(machine, 0)
        machine.run("systemctl enable --now ortdeploy-demo.timer")
        machine.wait_for("journalctl -u ortdeploy-demo -o cat | grep -c Finished | grep -v '^[01]$'")
        assert shown(machine, "Result", "ExecMainStatus") == ["success", "5"]
        machine.write(MANIFEST, TEXT.encode())
        wait_until_committed(machine, 1)
        check_rows(machine, 1)


def test_power_cuts_lose_and_double_nothing(tmp_path: Path) -> None:
    """Half of the cuts come at any moment after the boot, half of them in the middle of a job. No step is by hand."""
    moments = random.Random(1)  # noqa: S311  moments, not secrets
    machine = Machine(tmp_path)
    machine.boot()
    deploy(machine, tmp_path)
    machine.run("systemctl enable --now ortdeploy-demo && sync")
    files = within = 0
    parts = f"$(ls {HOME}/outbox/run 2> /dev/null | grep -c part)"
    for cut in range(CUTS):
        arrive(machine, files)
        files += 1
        if cut % 2:
            before = int(machine.run(f"echo {parts}").out)
            machine.wait_for(f"test {parts} -gt {before + moments.randint(0, MOST_PARTS)}")
        else:
            time.sleep(moments.uniform(0, MOST_SECONDS))
        time.sleep(moments.uniform(0, 1))
        within += machine.run(f"ls {HOME}/.ortdeploy/locks/*.json", fails=True).code == 0
        machine.cut_power()
        machine.boot()
    wait_until_committed(machine, files)
    check_rows(machine, files)
    machine.cut_power()
    print(f"{within} of {CUTS} cuts came while a job ran")  # noqa: T201  with -s
    assert within > CUTS / 3
