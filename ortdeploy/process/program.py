"""Runs a command of ortdeploy in another process, which shares the standard streams of this one."""

import signal
import subprocess
import sys
from collections.abc import Sequence

from ortdeploy.process.libraries import users_environment
from ortdeploy.process.supervision import SOCKET


class Program:
    """A running command. It has a session of its own: a terminal's signals reach it only through `send_signal`.

    Windows has no sessions.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """Start the command."""
        command = [sys.executable, "-P", "-m", "ortdeploy", *arguments]
        env = {name: value for name, value in users_environment().items() if name != SOCKET}
        self._process = subprocess.Popen(command, env=env, start_new_session=True)  # noqa: S603  our own program

    def wait(self, seconds: float) -> int | None:
        """Wait up to `seconds`, and return the exit code as a shell reports it; None if the command still runs."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    @property
    def ended_by(self) -> str | None:
        """The name of the signal that ended the command, if one did: a crash of native code, or a kill."""
        code = self._process.returncode
        return signal.Signals(-code).name if code is not None and code < 0 else None

    def send_signal(self, number: int) -> None:
        """Send a signal to the command if it still runs. On Windows, the console sends Ctrl-C to both by itself."""
        if sys.platform != "win32" and self._process.poll() is None:
            self._process.send_signal(number)
