"""A real systemd, real power cuts and a real NFS, on a machine under qemu: `.ci/machine` makes it and runs these tests."""

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


def put(machine: Machine, folder: Path, *, home: str = HOME, text: str = TEXT) -> None:
    """Put a deployment without input on a machine."""
    scale_model(folder / "double.onnx")
    machine.run(f"mkdir -p {home}/inbox")
    machine.write(f"{home}/double.onnx", (folder / "double.onnx").read_bytes())
    machine.write(f"{home}/m.yaml", text.encode())


def deploy(machine: Machine, folder: Path, *, text: str = TEXT, every: str = "") -> None:
    """Put a deployment and its units on a machine."""
    put(machine, folder, text=text)
    machine.run(f"chown -R runner {HOME} && {PROGRAM} service {MANIFEST} {every} -o /etc/systemd/system")
    machine.run("systemctl daemon-reload && sync")


def arrive(machine: Machine, number: int, *, home: str = HOME) -> None:
    """Let a file arrive that no power cut takes away again."""
    machine.write(f"{home}/inbox/{number}.npy", rows_of(number))


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
    """Wait until every row of the files is committed or failed, as long as their number grows."""
    most, due = -1, 0.0
    while (now := state(machine)).get("committed") != files * (ROWS - 1) or now["status"] != "done":
        if (committed := int(str(now.get("committed", 0)))) > most:
            most, due = committed, time.monotonic() + 600
        assert time.monotonic() < due, now
        time.sleep(1)
    assert now["failed"] == files


def check_rows(machine: Machine, files: int, *, home: str = HOME) -> None:
    """Every row is in a part exactly once, or the bad one of its file in the dead letters; and nothing is damaged."""
    lines = machine.run(f"cat {home}/outbox/run/part-*").out.splitlines()
    found = [json.loads(line)["y"][0] / 2 for line in lines]
    assert sorted(found) == [number for number in range(files * ROWS) if number % ROWS != BAD]
    letters = [json.loads(line) for line in machine.run(f"cat {home}/outbox/run/_failed.jsonl").out.splitlines()]
    assert sorted((one["path"], one["row_in_file"]) for one in letters) == sorted(
        (f"inbox/{number}.npy", BAD) for number in range(files)
    )
    machine.run(f"{PROGRAM} verify {home}/m.yaml")
    sound = "PRAGMA integrity_check"
    opened = f"sqlite3.connect('{home}/.ortdeploy/state.db')"
    assert (
        machine.run(f"python3 -c \"import sqlite3; print({opened}.execute('{sound}').fetchall())\"").out
        == "[('ok',)]\n"
    )
    assert not machine.run(f"find {home}/outbox -name '.*'").out
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
    with Machine(tmp_path) as machine:
        deploy(machine, tmp_path)
        machine.run("systemctl enable --now ortdeploy-demo && sync")
        within = sum(is_running for is_running in cuts(machine, moments))
        wait_until_committed(machine, CUTS)
        check_rows(machine, CUTS)
    print(f"{within} of {CUTS} cuts came while a job ran")  # noqa: T201  with -s
    assert within > CUTS / 3


def cuts(machine: Machine, moments: random.Random) -> Iterator[bool]:
    """Cut the power again and again, each time after a file has arrived; yield whether a job ran then."""
    parts = f"$(ls {HOME}/outbox/run 2> /dev/null | grep -c part)"
    for cut in range(CUTS):
        arrive(machine, cut)
        if cut % 2:
            before = int(machine.run(f"echo {parts}").out)
            machine.wait_for(f"test {parts} -gt {before + moments.randint(0, MOST_PARTS)}")
        else:
            time.sleep(moments.uniform(0, MOST_SECONDS))
        time.sleep(moments.uniform(0, 1))
        yield machine.run(f"ls {HOME}/.ortdeploy/locks/*.json", fails=True).code == 0
        machine.cut_power()
        machine.boot()


EXPORT, ALONE, FILES = "/srv/shared", "/srv/alone", 2
"""What the server exports, where the same job runs without NFS, and its input files."""
HABITS = """\
import os, sys
from pathlib import Path
from ortdeploy.files.exclusive_create import create_only
from ortdeploy.files.shared_folder import SharedFolder

here, there = (Path(one) / "habits" for one in sys.argv[1:])
here.mkdir()
os.scandir(there).close()
place, bound = SharedFolder(there), "_parts/plan/bound.json"
assert not place.exists(bound)
(here / bound).parent.mkdir(parents=True)
assert create_only(here / bound, b"here")
print("remembered" if not (there / bound).exists() else "asked", flush=True)
assert place.exists(bound) and place.read(bound) == b"here"
assert not place.create(bound, b"there") and place.read(bound) == b"here"
(here / "_parts/closed.json").write_bytes(b"{}")
assert sorted(place.names("_parts")) == ["closed.json", "plan"]
"""
"""What tests/support/nfs.py imitates: a client remembers what is not there, until the folder is opened."""


def mount(machine: Machine, version: str, number: int) -> str:
    """Mount the export with a cache of its own; return where."""
    place = f"/mnt/{version}-{number}"
    machine.run(f"mkdir -p {place} && mount -t nfs -o vers={version},nosharecache 10.0.0.1:{EXPORT} {place}")
    return place


def start(machine: Machine, place: str, number: int, shard: str, settings: str = "") -> None:
    """Start a worker in the deployment at a place; its exit code will be in a file."""
    worker = f"{settings} exec {PROGRAM} apply plan.json --shard {shard} --log-format json"
    machine.run(f"rm -f /run/{number}.code")
    machine.run(
        f"(cd {place} && bash -c 'echo $$ > /run/{number}.pid; {worker}'; echo $? > /run/{number}.code) "
        f">> /run/{number}.log 2>&1 &"
    )


def digests(machine: Machine, home: str) -> str:
    """Return the SHA-256 of each part."""
    return machine.run(f"cd {home}/outbox/run && sha256sum part-*").out


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine]]:
    """An NFS server, which has run the job of `ALONE` without NFS, and another machine."""
    folder, other = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("client")
    with Machine(folder, cable=folder) as server, Machine(other, cable=folder, number=2) as client:
        put(server, folder, home=ALONE)
        for number in range(FILES):
            arrive(server, number, home=ALONE)
        server.run(f"mkdir {EXPORT} && cp -r {ALONE} {EXPORT}/4.2 && cp -r {ALONE} {EXPORT}/3")
        server.run(f"{PROGRAM} apply {ALONE}/m.yaml", fails=True)  # 3, for some rows fail
        check_rows(server, FILES, home=ALONE)
        server.write("/etc/exports", f"{EXPORT} *(rw,no_root_squash,no_subtree_check)\n".encode())
        server.run("systemctl start rpcbind nfs-server")
        # Nobody has locks of before the boot to claim again; a minute and a half would pass until others get theirs.
        server.run("echo Y > /proc/fs/nfsd/v4_end_grace; echo Y > /proc/fs/lockd/nlm_end_grace", fails=True)
        yield server, client


@pytest.mark.parametrize("version", ["4.2", "3"])
def test_what_an_nfs_client_remembers_hides_nothing(sharing: tuple[Machine, Machine], version: str) -> None:
    _, client = sharing
    places = " ".join(mount(client, version, number) for number in (8, 9))
    client.write("/root/habits.py", HABITS.encode())
    assert client.run(f"/opt/ortdeploy/bin/python /root/habits.py {places}").out == "remembered\n"
    client.run(f"rm -r /mnt/{version}-8/habits && umount {places}")


@pytest.mark.parametrize("version", ["4.2", "3"])
def test_workers_on_mounts_of_nfs_make_every_row_once(sharing: tuple[Machine, Machine], version: str) -> None:
    """Two shards of two, and one that makes every part too; one of the two is killed and comes again."""
    server, client = sharing
    shards = [("auto", f"JOB_COMPLETION_INDEX={index} ORTDEPLOY_SHARDS=2") for index in range(2)] + [("0/1", "")]
    workers = [(one, f"{mount(one, version, number)}/{version}") for number, one in enumerate((server, client, client))]
    homes = [home for _, home in workers]
    server.run(f"cd {homes[0]} && {PROGRAM} plan m.yaml --out plan.json")
    for machine, home in workers:  # each remembers that there is nothing
        early = machine.run(f"cd {home} && {PROGRAM} finish plan.json", fails=True)
        assert (early.code, "no shard of this plan has run" in early.out) == (1, True)
    for number, (machine, home) in enumerate(workers):
        start(machine, home, number, *shards[number])
    decisions = f"{EXPORT}/{version}/outbox/run/_parts/*/part-*.json"
    server.wait_for(f"test $(ls {decisions} | wc -l) -gt 10")
    client.run("kill -9 $(cat /run/1.pid)")
    assert "parts decided" in client.run(f"{PROGRAM} status {homes[2]}/m.yaml").out
    start(client, homes[1], 1, *shards[1])
    refused = server.run(f"{PROGRAM} apply {homes[0]}/m.yaml", fails=True)
    assert (refused.code, "unfinished-shards" in refused.out) == (1, True)
    for number, (machine, _) in enumerate(workers):
        machine.wait_for(f"test -e /run/{number}.code", 900)
        assert machine.run(f"cat /run/{number}.code").out == "0\n", machine.run(f"tail -n 20 /run/{number}.log").out
    server.run(f"cd {homes[0]} && {PROGRAM} finish plan.json")
    expected = digests(server, ALONE)
    assert [digests(machine, home) for machine, home in workers] == [expected] * len(workers)
    check_rows(client, FILES, home=homes[2])
    said = json.loads(client.run(f"{PROGRAM} status {homes[1]}/m.yaml --format json").out)["jobs"][0]
    assert (said["status"], said["committed"], said["failed"]) == ("done", FILES * (ROWS - 1), FILES)
    assert "nothing to do" in client.run(f"cd {homes[1]} && {PROGRAM} apply plan.json --shard 0/1").out
    for machine in sharing:
        machine.run("umount -a -t nfs,nfs4")


def test_a_place_without_hard_links_is_refused_also_behind_nfs(sharing: tuple[Machine, Machine]) -> None:
    server, client = sharing
    server.run("mkdir -p /srv/fat && truncate -s 16M /srv/fat.img && mkfs.vfat /srv/fat.img")
    server.run("mount -o loop /srv/fat.img /srv/fat && exportfs -o rw,no_root_squash,fsid=9 '*:/srv/fat'")
    server.run(f"mkdir /srv/fat/run && cd {ALONE} && cp -r inbox double.onnx m.yaml /srv/fat/run")
    client.run("mkdir -p /mnt/fat && mount -t nfs -o vers=4.2 10.0.0.1:/srv/fat /mnt/fat")
    for machine, home in ((server, "/srv/fat/run"), (client, "/mnt/fat/run")):
        machine.run(f"cd {home} && {PROGRAM} plan m.yaml --out plan.json")
        refused = machine.run(f"cd {home} && {PROGRAM} apply plan.json --shard 0/1", fails=True)
        assert (refused.code, "makes no hard links" in refused.out) == (1, True)
        assert not machine.run(f"ls {home}/outbox/run | grep part-", fails=True).out
