"""A Debian machine under qemu with a real systemd, made by `.ci/machine`, whose power can be cut.

Its disk is a qcow2 layer above the image. qemu keeps the places of newly written clusters in its own memory until the
guest flushes its disk; what was not flushed is lost when qemu is killed, as in the cache of a real disk.
"""

import base64
import json
import os
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

FOLDER = Path(os.environ.get("ORTDEPLOY_MACHINE", "/nowhere"))
QEMU, QEMU_IMG = shutil.which("qemu-system-x86_64"), shutil.which("qemu-img")
WHY_NOT = (
    None
    if QEMU and QEMU_IMG and (FOLDER / "disk.raw").is_file()
    else "needs qemu and a machine; .ci/machine makes it and names it in ORTDEPLOY_MACHINE"
)
_BOOT = 600.0
"""Seconds for a boot without the help of a processor's virtualisation."""


class Said(Struct, frozen=True, kw_only=True):
    """The exit code of a command within the machine, and what it has printed."""

    code: int
    out: str


class Machine:
    """One machine and its disk; it is off at first. Within a `with` block its power is on until it is cut."""

    def __init__(self, folder: Path, *, cable: Path | None = None, number: int = 1) -> None:
        """Make the disk. A folder as `cable` connects the machines 1 and 2, whose addresses are 10.0.0.1 and 10.0.0.2."""
        self.folder = folder
        self._cable = cable
        self._number = number
        self._layers = 0
        self._above(FOLDER / "disk.raw", "raw")
        self._qemu: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = b""

    def __enter__(self) -> Self:
        self.boot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut_power()

    def boot(self) -> None:
        """Put the power on, and wait until the machine takes commands."""
        port = self.folder / "port"
        port.unlink(missing_ok=True)
        connected, tell = self._network()
        words = "root=/dev/vda rw console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0"
        command = [
            *(str(QEMU), "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "2", "-m", "2048", "-no-reboot"),
            *("-nodefaults", "-display", "none", "-serial", f"file:{self.folder}/console-{self._layers}.log"),
            *("-kernel", str(FOLDER / "vmlinuz"), "-initrd", str(FOLDER / "initrd"), "-append", words),
            *("-drive", f"file={self._disk},if=virtio,format=qcow2,cache=writeback"),
            *("-device", "virtio-serial-pci", "-chardev", f"socket,id=port,path={port},server=on,wait=off"),
            *("-device", "virtserialport,chardev=port,name=ortdeploy", "-device", "virtio-rng-pci"),
            *connected,
        ]
        self._qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        due = time.monotonic() + _BOOT
        while not port.exists():
            if self._qemu.poll() is not None or time.monotonic() > due:
                raise AssertionError("qemu has ended")
            time.sleep(0.05)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(port))
        self._socket.settimeout(_BOOT)
        self._received = b""
        assert self.run(tell).code == 0

    def _network(self) -> tuple[list[str], str]:
        """Return what qemu is told about the network, and what the machine is told once it has booted."""
        if self._cable is None:
            return [], "true"
        here, there = (self._cable / f"end-{number}" for number in (self._number, 3 - self._number))
        here.unlink(missing_ok=True)
        wire = f"dgram,id=net,local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
        card = f"virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{self._number}"
        address = f"10.0.0.{self._number}"
        network = f"[Match]\\nName=eth0\\n[Network]\\nAddress={address}/24\\n"
        told = (
            f"hostname machine-{self._number} && printf '{network}' > /etc/systemd/network/cable.network && "
            f"systemctl start systemd-networkd && until grep -q {address} /proc/net/fib_trie; do sleep 0.2; done"
        )
        return ["-netdev", wire, "-device", card], told

    def cut_power(self) -> None:
        """Kill qemu, and with it what the machine has not flushed to its disk. The next boot has a new layer."""
        if self._qemu is None or self._socket is None:
            return
        self._qemu.kill()
        self._qemu.wait()
        self._socket.close()
        self._qemu = self._socket = None
        self._above(self._disk, "qcow2")

    def run(self, command: str, *, fails: bool = False) -> Said:
        """Run a command of the shell as root; unless it may fail, it must not."""
        if self._socket is None:
            raise AssertionError("the power is off")
        self._socket.sendall(json.dumps({"command": command}).encode() + b"\n")
        while b"\n" not in self._received:
            got = self._socket.recv(1 << 16)
            assert got, "the machine is gone"
            self._received += got
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        said = Said(code=answer["code"], out=answer["out"])
        assert fails or said.code == 0, f"{command}: {said.code}\n{said.out}"
        return said

    def write(self, path: str, content: bytes) -> None:
        """Write a file, durably, that appears as a whole."""
        place, folder = shlex.quote(path), shlex.quote(str(Path(path).parent))
        text = base64.b64encode(content).decode()
        self.run(f"mkdir -p {folder} && base64 -d <<< {text} > {place}.new && mv {place}.new {place}")
        self.run(f"sync {place} {folder}")

    def wait_for(self, command: str, seconds: float = 300) -> str:
        """Wait until a command succeeds, and return what it prints."""
        due = time.monotonic() + seconds
        while (said := self.run(command, fails=True)).code != 0:
            assert time.monotonic() < due, f"{command}: {said.out}"
            time.sleep(0.5)
        return said.out

    def _above(self, below: Path, kind: str) -> None:
        self._layers += 1
        self._disk = self.folder / f"layer-{self._layers}.qcow2"
        command = [str(QEMU_IMG), "create", "-q", "-f", "qcow2", "-F", kind, "-b", str(below), str(self._disk)]
        subprocess.run(command, check=True)
