"""What systemd is told, by the datagrams that it would get."""

import os
import socket
from pathlib import Path

import pytest

from ortdeploy.process.supervision import notify, watchdog_seconds

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="has no Unix sockets")


@pytest.mark.parametrize("is_abstract", [False, True])
def test_states_arrive_as_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_abstract: bool) -> None:
    name = f"@ortdeploy-test-{os.getpid()}" if is_abstract else str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0", 1) if is_abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify(STOPPING=1, EXTEND_TIMEOUT_USEC=30_000_000)
        assert systemd.recv(4096) == b"STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000"


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify(READY=1)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify(READY=1)


def test_a_listener_that_reads_nothing_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "s"))
        for _ in range(2000):
            notify(WATCHDOG=1)
        assert systemd.recv(4096) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("life", "process", "seconds"),
    [
        ("30000000", None, 30.0),
        ("30000000", "own", 30.0),
        ("30000000", "1", None),
        (None, None, None),
        ("", None, None),
        ("soon", None, None),
    ],
)
def test_the_watchdog(
    life: str | None, process: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WATCHDOG_USEC", life), ("WATCHDOG_PID", str(os.getpid()) if process == "own" else process)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert watchdog_seconds() == seconds
