"""Hosts that are network namespaces of this machine, on one switch: each has its name, its mounts, and a link to cut.

What listens on the switch may be a thread of the tests: a socket stays in the namespace in which it was made.
"""

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import REPOSITORY

NEEDED = ("ip", "unshare", "mount")
_CLONE_NEWNET = 0x40000000
_NETWORK = "198.18.0"
"""Of the addresses that are kept for tests of networks."""

_BEGIN = """
echo "$0" > /proc/sys/kernel/hostname
mount --bind "$1" "$2"
mount -t tmpfs none "$1"
cd "$2"
shift 2
exec "$@"
"""
"""Gives a process the host's name, and the tree at the host's own path and at no other; then it is the program."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host. It sees `tree` at `folder`, and keeps its state in `state`."""

    name: str
    address: str
    tree: Path
    folder: Path
    state: Path
    namespace: str
    started: "list[subprocess.Popen[str]]" = field(default_factory=list, compare=False)

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        """Start ortdeploy on the host. The process is ortdeploy's own, by its number, too."""
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount"]
        begin = ["sh", "-ec", _BEGIN, self.name, str(self.tree), str(self.folder)]
        program = [sys.executable, "-m", "ortdeploy", *map(str, arguments), "--state-dir", str(self.state)]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen(
            [*inside, *begin, *program],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str | Path) -> str:
        """Run ortdeploy on the host, and return what it printed; it must end well."""
        with self.start(*arguments) as process:
            out, _ = process.communicate()
        assert process.returncode == 0, out
        return out


class Network:
    """A switch, and hosts that it joins."""

    def __init__(self, prefix: str, hosts: Sequence[Host]) -> None:
        self.hosts = hosts
        self._switch = f"{prefix}-switch"

    def make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "set", "lo", "up")
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "address", "add", f"{_NETWORK}.1/24", "dev", "switch")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for host in self.hosts:
            _ip("netns", "add", host.namespace)
            peer = ("peer", "name", host.name, "netns", self._switch)
            _ip("link", "add", "eth0", "netns", host.namespace, "type", "veth", *peer)
            _ip("-n", self._switch, "link", "set", host.name, "master", "switch", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", host.namespace, "link", "set", link, "up")

    def delete(self) -> None:
        """End what a failed test has left running, and delete the namespaces with their links."""
        for process in (one for host in self.hosts for one in host.started if one.poll() is None):
            process.kill()
            process.communicate()
        for name in (*(host.namespace for host in self.hosts), self._switch):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    def cut(self, host: Host) -> None:
        """Pull the host's cable out of the switch."""
        _ip("-n", self._switch, "link", "set", host.name, "down")

    def mend(self, host: Host) -> None:
        _ip("-n", self._switch, "link", "set", host.name, "up")

    def listen(self) -> socket.socket:
        """Return a socket that listens on the switch's own address."""
        made: list[socket.socket] = []

        def make() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            with Path(f"/run/netns/{self._switch}").open("rb") as namespace:
                if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:  # of this thread alone, which then ends
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server((f"{_NETWORK}.1", 0)))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]


@contextmanager
def network(folder: Path, tree: Path, names: Sequence[str]) -> Iterator[Network]:
    """Yield hosts that see a tree, each at a path of its own in a folder. Skips the test where there can be none."""
    if sys.platform != "linux" or not all(map(shutil.which, NEEDED)):
        pytest.skip(f"needs {', '.join(NEEDED)} of Linux: apt-get install iproute2 util-linux mount")
    if os.getuid() != 0:
        pytest.skip("network namespaces are root's to make")
    prefix = f"ort-{secrets.token_hex(3)}"
    hosts = [
        Host(name, f"{_NETWORK}.{number}", tree, folder / name / "tree", folder / name / "state", f"{prefix}-{name}")
        for number, name in enumerate(names, start=11)
    ]
    for host in hosts:
        host.folder.mkdir(parents=True)
    made = Network(prefix, hosts)
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine lets nobody make network namespaces: {error.stderr}")
        yield made
    finally:
        made.delete()


def _ip(*arguments: str) -> None:
    subprocess.run([str(shutil.which("ip")), *arguments], check=True, capture_output=True, encoding="utf-8")
