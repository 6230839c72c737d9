"""Tells systemd the state of a service, by the datagrams of sd_notify(3), if NOTIFY_SOCKET is set."""

import os
import socket
from contextlib import suppress

SOCKET = "NOTIFY_SOCKET"
_LIFE = "WATCHDOG_USEC"
_OF_PROCESS = "WATCHDOG_PID"


def notify(**states: str | int) -> None:
    """Send states, such as READY=1; do nothing if nobody listens."""
    address = os.environ.get(SOCKET, "")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    place = f"\0{address[1:]}" if address.startswith("@") else address  # an abstract name
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # whoever should listen may have come to a halt
        sender.sendto("\n".join(f"{name}={value}" for name, value in states.items()).encode(), place)


def watchdog_seconds() -> float | None:
    """Return after how many seconds of silence systemd ends this process; None if it has no watchdog."""
    life = os.environ.get(_LIFE, "")
    is_ours = os.environ.get(_OF_PROCESS, str(os.getpid())) == str(os.getpid())
    return int(life) / 1e6 if life.isdecimal() and is_ours else None
