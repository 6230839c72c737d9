"""A saved plan on a real Ray cluster of two nodes, which are two raylets here: whatever is killed, the same bytes.

Nodes are process groups of their own, so a node is killed by its number, and nothing else of the machine's Ray is.
"""

import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, REPOSITORY, Cli, Result, run_process
from support import s3
from support.forks import start_program
from support.models import TRAPS, crashing_model
from support.shards import BY_ROW, LOOKED_UP, write_rows
from support.waiting import wait_for

from ortdeploy.ledger.opening import read_outputs

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: extra `ray`"),
    pytest.mark.skipif(sys.platform != "linux", reason="nodes are killed by process groups, and seen in /proc"),
]

ROWS = 1200
SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 4").replace("size: 8", "size: 4")


class Node:
    """A raylet, and on the head what a cluster has once, in a process group."""

    def __init__(self, log: Path, env: dict[str, str], *arguments: str) -> None:
        self._log = log
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=2", "--object-store-memory=80000000",
            "--disable-usage-stats", "--block", *arguments,
        ]  # fmt: skip
        self._command, self._env = command, env
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("wb") as file:
            return subprocess.Popen(self._command, env=self._env, stdout=file, stderr=file, start_new_session=True)

    def is_up(self) -> bool:
        if self._process.poll() is not None:
            assert "timed out during startup" in self._log.read_text(), self._log.read_text()
            self._process = self._start()  # Ray gives a node thirty seconds, which a busy machine may not have
        return "Ray runtime started" in self._log.read_text()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Cluster:
    """A head node, and others that tests start and kill. Its token is nobody else's."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self._folder = folder
        self.env = {
            **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": str(REPOSITORY),
            "RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "500",
            "RAY_health_check_failure_threshold": "3", "RAY_USAGE_STATS_ENABLED": "0",
            "AWS_CONFIG_FILE": str(folder / "aws-config"), "AWS_SHARED_CREDENTIALS_FILE": str(folder / "aws-keys"),
        }  # fmt: skip
        options = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
        self.head = Node(folder / "head.log", self.env, *options)
        self.others: list[Node] = []
        wait_for(self.head.is_up)
        (address,) = set(re.findall(r"--address='([^']+)'", (folder / "head.log").read_text()))
        self.address = address

    def know(self, bucket: s3.Store) -> None:
        """Tell the nodes, which run already, where a store is, and who they are there."""
        keys, own = s3.KEYS, [self._folder / name for name in ("aws-config", "aws-keys")]
        own[0].write_text(f"[default]\nregion = {keys['AWS_DEFAULT_REGION']}\nendpoint_url = {bucket.endpoint}\n")
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        own[1].write_text("[default]\n" + "".join(f"{name.lower()} = {keys[name]}\n" for name in names))

    def add_node(self) -> Node:
        node = Node(self._folder / f"node{len(self.others)}.log", self.env, f"--address={self.address}")
        self.others.append(node)
        wait_for(node.is_up)
        return node

    def close(self) -> None:
        for node in (*self.others, self.head):
            node.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of two nodes. Its folder has a short name: Unix sockets in it may not have longer ones."""
    folder = Path(f"/tmp/ort-ray-{secrets.token_hex(3)}")  # noqa: S108  see above
    folder.mkdir()
    started = Cluster(folder)
    try:
        started.add_node()
        yield started
    finally:
        started.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def plan(cli: Cli, deployment: Path) -> Path:
    np.save(deployment / "data.npy", np.arange(4 * ROWS, dtype=np.float32).reshape(ROWS, 4))
    (deployment / "m.yaml").write_text(SMALL)
    assert cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json").code == 0
    return deployment / "plan.json"


@pytest.fixture
def alone(cli: Cli, plan: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The parts that one machine makes."""
    copy = Path(shutil.copytree(plan.parent, tmp_path_factory.mktemp("alone") / "copy"))
    assert cli("apply", copy / "m.yaml").code == 0
    return parts(copy)


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "outbox/run").glob("part-*")}


def decided(folder: Path) -> int:
    return len(list((folder / "outbox/run/_parts").glob("*/part-*.json")))


def report(folder: Path) -> Any:
    return json.loads((folder / "outbox/run/_run.json").read_text())


def apply(cluster: Cluster, plan: Path, *more: str) -> Result:
    arguments = ["apply", str(plan), "--engine", f"ray={cluster.address}", "--workers", "2", *more]
    return run_process(arguments, cwd=plan.parent, env=cluster.env)


def start(cluster: Cluster, plan: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ortdeploy", "apply", str(plan), "--engine", f"ray={cluster.address}"]
    log = ["--log-file", str(plan.parent / "log"), "--workers", "2", "-q"]
    return subprocess.Popen([*command, *log], cwd=plan.parent, env=cluster.env)


def processes_of(cluster: Cluster, name: str) -> list[int]:
    """The numbers of the cluster's processes, which know its token, that have this in their command lines."""
    token, found = cluster.env["RAY_AUTH_TOKEN"].encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if name.encode() in (folder / "cmdline").read_bytes() and token in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def actors(cluster: Cluster) -> list[int]:
    return processes_of(cluster, "ray::WorkerActor")


def workers(cluster: Cluster) -> list[int]:
    return processes_of(cluster, "ortdeploy.cli.children.worker")


def events(plan: Path, name: str) -> list[Any]:
    lines = map(json.loads, (plan.parent / "log").read_text().splitlines())
    return [one for one in lines if one["event"] == name]


def test_two_nodes_make_the_bytes_of_one_machine_and_what_workers_log_comes_back(
    cluster: Cluster, plan: Path, alone: dict[str, bytes]
) -> None:
    done = apply(cluster, plan, "--log-format", "json")
    assert done.code == 0, done.err
    assert parts(plan.parent) == alone
    workers_ = report(plan.parent)["workers"]
    assert {one["shard"] for one in workers_} <= {"ray 0", "ray 1"}  # one may have made all before the other was ready
    assert sum(one["rows"] for one in workers_) == ROWS
    logged = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    made = [one["worker"] for one in logged if one["event"] == "part.decided"]
    assert len(made) >= ROWS // 4
    assert all(name.startswith("worker ") for name in made)
    again = apply(cluster, plan)
    assert (again.code, "nothing to do" in again.out) == (0, True)


@pytest.mark.parametrize(("kind", "by_row"), [("npz", False), ("parquet", True), ("csv", True)])
def test_every_format_is_that_of_one_machine_also_with_padding_failed_rows_and_adapters_by_row(
    cluster: Cluster, cli: Cli, tmp_path: Path, kind: str, *, by_row: bool
) -> None:
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    for folder in (shared, alone):
        folder.mkdir()
        write_rows(folder, by_row=by_row)
        (folder / "m.yaml").write_text((BY_ROW if by_row else LOOKED_UP).replace("FORMAT", kind))
    assert cli("apply", alone / "m.yaml").code == 0
    assert cli("plan", shared / "m.yaml", "--out", shared / "plan.json").code == 0
    done = apply(cluster, shared / "plan.json")
    assert done.code == 0, done.words
    assert (len(parts(shared)), parts(shared)) == (4, parts(alone))
    letters = [json.loads(line)["row"] for line in (shared / "outbox/run/_failed.jsonl").read_text().splitlines()]
    assert letters == [9, 26]


@pytest.mark.parametrize("victim", ["actor", "worker"])
def test_an_actor_or_its_process_that_is_killed_is_replaced(
    cluster: Cluster, plan: Path, alone: dict[str, bytes], victim: str
) -> None:
    wait_for(lambda: not actors(cluster))  # those of the driver before
    driver = start(cluster, plan)
    wait_for(lambda: decided(plan.parent) >= 10)
    os.kill((actors if victim == "actor" else workers)(cluster)[0], signal.SIGKILL)
    assert driver.wait() == 0
    assert parts(plan.parent) == alone
    lost = events(plan, "worker.lost" if victim == "actor" else "part.failed")  # none, if it had no part just then
    assert all(("unavailable" if victim == "actor" else "was ended by SIGKILL") in one["reason"] for one in lost)


def test_a_driver_that_is_killed_leaves_no_worker_and_the_next_one_goes_on_without_its_state(
    cluster: Cluster, plan: Path, alone: dict[str, bytes]
) -> None:
    driver = start(cluster, plan)
    wait_for(lambda: decided(plan.parent) >= 10)
    driver.kill()
    driver.wait()
    wait_for(lambda: not workers(cluster))
    before = decided(plan.parent)
    assert before < len(alone)
    shutil.rmtree(plan.parent / ".ortdeploy")
    driver = start(cluster, plan)
    assert driver.wait() == 0
    assert parts(plan.parent) == alone
    assert report(plan.parent)["rows"]["committed"] == ROWS
    assert len(events(plan, "part.decided")) < len(alone)


def test_what_a_shard_has_begun_ray_goes_on_with_and_shards_end(
    cluster: Cluster, plan: Path, alone: dict[str, bytes]
) -> None:
    shard = start_program(["apply", plan, "--shard", "1/3", "-q"], cwd=plan.parent)
    wait_for(lambda: decided(plan.parent) >= 10)
    shard.kill()
    shard.wait()
    begun = decided(plan.parent)
    driver = start(cluster, plan)
    wait_for(lambda: decided(plan.parent) >= begun + 10)
    driver.kill()
    driver.wait()
    wait_for(lambda: not workers(cluster))
    assert decided(plan.parent) < len(alone)
    for index in (1, 0):
        assert run_process(["apply", plan, "--shard", f"{index}/2"], cwd=plan.parent).code == 0
    assert run_process(["finish", plan], cwd=plan.parent).code == 0
    assert parts(plan.parent) == alone
    assert {"1/3", "1/2", "0/2"} < {one["shard"] for one in report(plan.parent)["workers"]}


def test_a_driver_that_is_asked_to_stop_says_what_is_left(cluster: Cluster, plan: Path) -> None:
    driver = start(cluster, plan)
    wait_for(lambda: decided(plan.parent) >= 10)
    driver.terminate()
    assert driver.wait() == 143
    wait_for(lambda: not workers(cluster))
    assert re.search(r"asked to stop; \d+ of 300 parts are left to do", report(plan.parent)["reason"])


def test_a_worker_with_another_model_makes_no_part(cluster: Cluster, plan: Path) -> None:
    """The driver's model is the plan's; the worker, which looks later, finds another one."""
    driver = start(cluster, plan)
    wait_for((plan.parent / "outbox/run/_parts").exists)
    model = plan.parent / "double.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    assert driver.wait() == 1
    assert parts(plan.parent) == {}
    assert all("moved-fact" in one["reason"] for one in events(plan, "worker.refused"))
    (record,) = read_outputs(plan.parent / ".ortdeploy")
    assert "no worker is left: worker" in (record.reason or "")


def test_a_node_that_dies_is_done_without(cluster: Cluster, plan: Path, alone: dict[str, bytes]) -> None:
    node = cluster.others[-1]
    driver = start(cluster, plan)
    wait_for(lambda: decided(plan.parent) >= 10)
    node.kill()
    assert driver.wait() == 0
    assert parts(plan.parent) == alone
    assert len(events(plan, "worker.lost")) >= 1
    cluster.add_node()


def test_a_worker_that_hangs_loses_its_parts_to_the_other(
    cluster: Cluster, plan: Path, alone: dict[str, bytes]
) -> None:
    script = (
        "import sys; from ortdeploy.application import queue; queue.OVERDUE_SECONDS = 2.0; "
        "from ortdeploy.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["apply", str(plan), "--engine", f"ray={cluster.address}", "--workers", "2", "-q"]
    log = ["--log-file", str(plan.parent / "log")]
    driver = subprocess.Popen([sys.executable, "-c", script, *arguments, *log], cwd=plan.parent, env=cluster.env)
    wait_for(lambda: decided(plan.parent) >= 10)
    hanging = workers(cluster)[0]
    os.kill(hanging, signal.SIGSTOP)
    assert driver.wait() == 0
    assert parts(plan.parent) == alone
    assert events(plan, "worker.late")
    wait_for(lambda: not workers(cluster))


@pytest.mark.parametrize(("kind", "where"), [("csv", "store"), ("jsonl", "folder")])
def test_workers_make_their_parts_of_tables_of_text_on_a_store(
    cluster: Cluster, cli: Cli, deployment: Path, bucket: s3.Store, kind: str, where: str
) -> None:
    """Tables of two files, in each of which the plan has a place at which a row begins; a part has rows of both."""
    cluster.know(bucket)
    rows, half = [[row, row, 1, 2] for row in range(ROWS)], ROWS // 2 + 17
    for name, some in (("a", rows[:half]), ("b", rows[half:])):
        bucket.put(f"in/{name}.{kind}", table(kind, some))
    text = MANIFEST.replace("data.npy, key: [row]", f'"{bucket.url(f"in/*.{kind}")}", COLUMNS key: [row, path]')
    text = text.replace("COLUMNS", "columns: {x: [a, b, c, d]}," if kind == "csv" else "")
    text = text.replace("format: jsonl", "format: jsonl, rows_per_part: 96")
    (deployment / "alone.yaml").write_text(text.replace("outbox/run", "alone").replace("name: demo", "name: alone"))
    assert cli("apply", deployment / "alone.yaml").code == 0
    alone = {path.name: path.read_bytes() for path in (deployment / "alone").glob("part-*")}
    plan, out = deployment / "plan.json", bucket.url("out") if where == "store" else "outbox/run"
    (deployment / "m.yaml").write_text(text.replace("outbox/run", f'"{out}"'))
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    done = apply(cluster, plan)
    assert done.code == 0, done.words
    assert len(alone) == -(-ROWS // 96)
    assert (bucket.parts("out") if where == "store" else parts(deployment)) == alone


def table(kind: str, rows: list[list[int]]) -> bytes:
    """A table of text with line ends within cells, large enough for several places of its index."""
    note = "note " * 500
    if kind == "csv":
        return ("a,b,c,d,note\n" + "".join(f'{",".join(map(str, row))},"{note}\n"\n' for row in rows)).encode()
    return "".join(json.dumps({"x": row, "note": note}) + "\n" for row in rows).encode()


@TRAPS
def test_a_row_that_crashes_native_code_becomes_a_dead_letter(cluster: Cluster, cli: Cli, deployment: Path) -> None:
    crashing_model(deployment / "double.onnx")
    values = np.arange(1, ROWS + 1).repeat(4).reshape(ROWS, 4)
    values[150] = -1
    np.save(deployment / "data.npy", values)
    (deployment / "m.yaml").write_text(f"{SMALL}    errors: {{max_failed: 1}}\n")
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    assert start(cluster, plan).wait() == 0
    (letter,) = [json.loads(line) for line in (deployment / "outbox/run/_failed.jsonl").read_text().splitlines()]
    assert (letter["row"], letter["code"]) == (150, "crashed")
    assert events(plan, "run.watched")
    assert (events(plan, "run.crashed")[-1]["first"], events(plan, "part.failed")) == (150, [])
    assert report(deployment)["rows"] == {"input": ROWS, "committed": ROWS - 1, "failed": 1, "skipped": 0}


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.1:1", "cannot be reached"), ("auto", "is in no Ray cluster that runs")],
)
def test_a_cluster_that_is_not_there_is_told(plan: Path, address: str, words: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env["RAY_TMPDIR"] = str(plan.parent / "none")
    missing = run_process(("apply", plan, "--engine", f"ray={address}", "-q"), cwd=plan.parent, env=env)
    assert (missing.code, words in missing.words) == (1, True), missing.words


def test_a_cluster_that_asks_for_a_token_is_told(cluster: Cluster, plan: Path) -> None:
    refused = run_process(
        ("apply", plan, "--engine", f"ray={cluster.address}", "-q"),
        cwd=plan.parent,
        env={"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "", "PYTHONPATH": str(REPOSITORY)},
    )
    assert refused.code == 1
    assert "RAY_AUTH_MODE=token" in refused.words
