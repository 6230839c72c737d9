"""A command of ortdeploy in another process."""

import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ortdeploy.process import program
from ortdeploy.process.program import Program


def test_ctrl_c_is_not_handed_on_where_the_console_sends_it_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def send_signal(number: int) -> None:
        raise ValueError(f"Unsupported signal: {number}")  # as Popen of Windows does

    def start(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(poll=lambda: None, send_signal=send_signal)

    monkeypatch.setattr(program, "subprocess", SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired))
    monkeypatch.setattr(program, "sys", SimpleNamespace(platform="win32", executable=sys.executable))
    Program(["apply"]).send_signal(signal.SIGINT)
