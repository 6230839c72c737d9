"""A saved plan on three hosts that share a store and nothing else: one loses its network for a while, one its process.

The hosts are network namespaces of this machine, so a link that is cut loses packets; it does not close connections.
"""

import json
import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest
from conftest import MANIFEST
from support import s3
from support.hosts import Host, Network, network
from support.models import scale_model
from support.waiting import wait_for

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROWS = 96
PARTS = 24
KEPT = MANIFEST.replace("key: [row]", "key: [row, path]").replace("size: 8", "size: 4")
SMALL = KEPT.replace("format: jsonl", "format: jsonl, rows_per_part: 4")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Network]:
    """Three hosts that have the same tree, at three paths."""
    tree = tmp_path / "tree"
    tree.mkdir()
    scale_model(tree / "double.onnx")
    np.save(tree / "data.npy", np.arange(4 * ROWS, dtype=np.float32).reshape(ROWS, 4))
    with network(tmp_path / "hosts", tree, ["node-a", "node-b", "node-c"]) as made:
        yield made


@pytest.fixture
def bucket(hosts: Network, s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.Store]:
    """A bucket that the hosts reach through their switch."""
    with s3.bucket(s3_port, monkeypatch, hosts.listen()) as bucket:
        yield bucket


class Adversity:
    """Cuts a host's link with its second decision, and kills another's process (SIGKILL) with its third.

    Both decisions are carried out; nobody gets the answers. The link is cut once the third host is at work, so what
    follows takes moments, and no client gives up.
    """

    def __init__(self, hosts: Network, cut: Host, killed: Host) -> None:
        self.decisions: dict[str, int] = defaultdict(int)
        self.is_cut = threading.Event()
        self._hosts, self._cut, self._killed = hosts, cut, killed
        self._victim: Popen[str] | None = None
        self._is_known, self._others_work = threading.Event(), threading.Event()

    def kill(self, victim: Popen[str]) -> None:
        """Name the process to kill."""
        self._victim = victim
        self._is_known.set()

    def __call__(self, request: s3.Request) -> str | None:
        method, path, headers = request
        if method != "PUT" or not re.search(r"/part-\d+\.json", path):
            return None
        who = headers["x-forwarded-for"]
        self.decisions[who] += 1
        if who not in {self._cut.address, self._killed.address}:
            self._others_work.set()
        if (who, self.decisions[who]) == (self._cut.address, 2):
            self._others_work.wait()
            self._hosts.cut(self._cut)
            self.is_cut.set()
        if (who, self.decisions[who]) == (self._killed.address, 3):
            self._is_known.wait()
            if self._victim is not None:
                os.kill(self._victim.pid, signal.SIGKILL)
            return s3.CUT_AFTER
        return None

    def asked_of(self, bucket: s3.Store, host: Host) -> int:
        """How many requests of a host have come."""
        return sum(headers["x-forwarded-for"] == host.address for _, _, headers in list(bucket.asked))


def test_three_hosts_leave_every_row_once_though_a_link_is_cut_and_a_process_killed(
    hosts: Network, bucket: s3.Store
) -> None:
    one, killed, cut = hosts.hosts
    tree = one.tree
    (tree / "alone.yaml").write_text(SMALL.replace("name: demo", "name: alone"))
    one.run("apply", "alone.yaml")
    alone = {path.name: path.read_bytes() for path in (tree / "outbox/run").glob("part-*")}
    assert len(alone) == PARTS
    (tree / "m.yaml").write_text(SMALL.replace("outbox/run", f'"{bucket.url("out")}"'))
    one.run("plan", "m.yaml", "--out", "plan.json")

    bucket.faults = adversity = Adversity(hosts, cut=cut, killed=killed)
    running = {
        host: host.start("apply", "plan.json", "--shard", f"{number}/3") for number, host in enumerate(hosts.hosts)
    }
    adversity.kill(running[killed])
    wait_for(adversity.is_cut.is_set)
    before = adversity.asked_of(bucket, cut)
    others = adversity.decisions[one.address]
    wait_for(lambda: adversity.decisions[one.address] >= others + 2 or running[one].poll() is not None)
    assert (running[cut].poll(), adversity.asked_of(bucket, cut)) == (None, before)
    hosts.mend(cut)
    printed = {host: process.communicate()[0] for host, process in running.items()}
    codes = [running[host].returncode for host in hosts.hosts]
    assert codes == [0, -signal.SIGKILL, 0], printed
    assert adversity.asked_of(bucket, cut) > before

    shares = json.loads(one.run("status", "m.yaml", "--format", "json"))["jobs"][0]["shares"]
    assert shares["left"], "the killed process has made all of its parts"
    one.run("apply", "plan.json", "--shard", "1/3")
    assert f"{PARTS} of {PARTS} parts decided" in one.run("finish", "plan.json")
    assert "parts decided" not in one.run("status", "m.yaml")
    one.run("verify", "m.yaml")
    assert bucket.parts("out") == alone
    report = json.loads(bucket.read("out/_run.json"))
    assert report["rows"] == {"input": ROWS, "committed": ROWS, "failed": 0, "skipped": 0}
    assert {worker["host"] for worker in report["workers"]} == {host.name for host in hosts.hosts}
    assert s3.local_copies(tree) == sorted(alone)
