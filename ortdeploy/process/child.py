"""Runs a module of this package in a child process and talks to it, so that a crash of a library ends only the child.

The parent calls `ask`, or uses `Child` if it wants each message at once. In the child, `be_child` calls the module's
`main` with an `Asked`: the request and a way to answer. The request, with the secrets that this process knows, goes to
the child's standard input, as one line; with `listens`, the parent may send further messages after it. The child's
own messages are JSON objects, one a line, some with bytes behind the line, in the pipe at the child's standard output.
The child takes this pipe for itself before it imports anything else; from then on, its prints go to standard error.
"""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, Protocol, Self

from msgspec import Struct

from ortdeploy.process.held_process import may_be_ended
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.process.python_warnings import Emit, warnings_to
from ortdeploy.process.without_pandas import spare_pandas
from ortdeploy.redaction import known_secrets, remember_secret, without_secrets
from ortdeploy.terminal_text import safe

_ROOT = str(Path(__file__).parent.parent.parent)
_LOAD = """
import importlib.machinery, importlib.util, sys
root = sys.argv.pop(1)
spec = importlib.machinery.PathFinder.find_spec("ortdeploy", [root])
package = sys.modules["ortdeploy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
sys.path.append(root)
"""
_RUN = f"""{_LOAD}
from ortdeploy.process.child import be_child
be_child(sys.argv[1])
"""
_PROGRAM = f"""{_LOAD}
from ortdeploy.cli.main import run
run()
"""
_PATIENCE = 10.0  # seconds for a child that has said all, or was told to stop
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


CRASHES = frozenset(
    -getattr(signal, name)
    for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGPROF", "SIGSEGV", "SIGVTALRM")
    if hasattr(signal, name)
)
"""Exit statuses of processes that native code has ended, or held too long; SIGKILL is the system's, for memory."""


class Say(Protocol):
    """Sends a message to the parent."""

    def __call__(self, blob: bytes | None = None, /, **message: Any) -> None:
        """Send the arguments as one message, with bytes if there are any."""


class ChildModule(Protocol):
    """The names that a module that runs in a child has."""

    def main(self, asked: "Asked", /) -> None:
        """Do what the parent asks."""


class Answer(Struct, frozen=True):
    """All messages of a child, its exit status, whether it ran out of time, and the end of its prints."""

    messages: list[dict[str, Any]]
    code: int
    late: bool
    printed: str

    @property
    def last_words(self) -> str:
        """The last line that the child printed; empty if it printed nothing."""
        lines = self.printed.strip().splitlines()
        return lines[-1].strip() if lines else ""


def ask(module: str, request: Any, *, seconds: float | None = None) -> Answer:
    """Run a module in a child, and return its messages once it has ended. The child is killed after `seconds`."""
    with Child(module, request, seconds=seconds) as child:
        messages = list(child.messages())
        return Answer(messages, child.wait(), child.late, child.printed())


class Child:
    """A child process that lives in a `with` block.

    `keeps_stderr`: it logs to the same place as this process, and `printed` has only the prints of native libraries;
    otherwise `printed` has all prints. `own_session`: the child gets a session of its own, so a terminal's signals
    reach it only through `send_signal`, and it may stop by itself if the block fails. The child is killed after
    `seconds`. `on_warning` gets the Python warnings of the child; by default they are dropped. `listens`: the child
    reads what `tell` sends, until `close_input`.
    """

    def __init__(
        self,
        module: str,
        request: Any,
        *,
        keeps_stderr: bool = False,
        own_session: bool = False,
        seconds: float | None = None,
        on_warning: Emit = lambda _category, _text, _place: None,
        listens: bool = False,
    ) -> None:
        """Store the arguments; the `with` block starts the child."""
        self.late = False
        self._command = child_command(module)
        self._request = request
        self._keeps_stderr, self._own_session, self._on_warning = keeps_stderr, own_session, on_warning
        self._listens = listens
        self._timer = None if seconds is None else threading.Timer(seconds, self._give_up)
        self._printed = NativeOutput()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            if self._process is not None:
                self._process.kill()
                self.close_input()
                self.wait()
                self._pipe().close()
            self._printed.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close_input()
            if kind is not None and not self._own_session:
                self._running().kill()
            self.wait()
            self._pipe().close()
        finally:
            self._printed.close()

    def tell(self, **message: Any) -> None:
        """Send the arguments as one message; a child that is gone gets none, which shows in `messages`."""
        with suppress(BrokenPipeError):
            self._write(message)

    def close_input(self) -> None:
        """Tell a child that listens that nothing more will come."""
        stdin = self._running().stdin
        if stdin is not None:
            with suppress(BrokenPipeError):
                stdin.close()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages of the child until it closes the pipe or is gone; the bytes of one are its `blob`."""
        pipe = self._pipe()
        for line in pipe:
            message = _message(line)
            if message is None:
                continue
            if "blob" in message:
                size, message["blob"] = message["blob"], pipe.read(message["blob"])
                if len(message["blob"]) < size:  # the end of the child has cut them off
                    return
            if "warning" in message:
                self._on_warning(*message["warning"])
            else:
                yield message

    def wait(self) -> int:
        """Return the exit status of a child that has said everything or should stop; kill it if it does not end."""
        process = self._running()
        try:
            return process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def printed(self) -> str:
        """Return the end of what the child printed since the last call."""
        return self._printed.take()

    def send_signal(self, number: int) -> None:
        """Send a signal to the child if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _start(self) -> None:
        native = (self._printed.descriptor,) if self._keeps_stderr and sys.platform != "win32" else ()
        self._process = subprocess.Popen(  # noqa: S603  our own module
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._keeps_stderr else self._printed.descriptor,
            pass_fds=native,
            start_new_session=self._own_session,
        )
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        request = {"request": self._request, "secrets": known_secrets(), "native": native[0] if native else None}
        self.tell(**request)  # a child that is gone already shows in `wait`
        if not self._listens:
            self.close_input()

    def _write(self, message: dict[str, Any]) -> None:
        stdin = self._running().stdin
        if stdin is None:
            raise AssertionError("a pipe was asked for")
        stdin.write(f"{json.dumps(message)}\n".encode())
        stdin.flush()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise AssertionError("a child is started by a with block")
        return self._process

    def _pipe(self) -> "BinaryIO | Any":
        return self._running().stdout

    def _give_up(self) -> None:
        self.late = True
        self._running().kill()


def child_command(module: str) -> list[str]:
    """Return the command line that starts a module of this same ortdeploy.

    -P keeps Python from looking for modules in the current folder, which may hold anybody's files.
    """
    return [sys.executable, "-P", "-c", _RUN, _ROOT, module]


def program_command() -> list[str]:
    """Return the command line that starts this same ortdeploy as a program; its arguments come behind it."""
    return [sys.executable, "-P", "-c", _PROGRAM, _ROOT]


def how_it_ended(code: int) -> str:
    """Say in words how a child ended too early, from its exit status."""
    if code and code == -getattr(signal, "SIGVTALRM", 0):
        return "was ended, because a library held it for longer than run_timeout or progress_timeout"
    if code and code == -getattr(signal, "SIGPROF", 0):
        return "was ended, because the tokenizer came to no end over a text"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"was ended with code {code}"


def _message(line: bytes) -> dict[str, Any] | None:
    """Read a message; return None for a line that is none.

    Such lines were printed before the child took the pipe for itself, or the end of the child cut them off.
    """
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and line.endswith(b"\n") else None


class Asked(Struct, frozen=True):
    """In the child: the request, a way to answer, and a place for the prints of native libraries."""

    request: Any
    say: Say
    native: int | None

    @staticmethod
    def told() -> Iterator[dict[str, Any]]:
        """Yield what the parent tells after the request, until it has no more to say or is gone."""
        for line in sys.stdin.buffer:
            message = _message(line)
            if message is not None:
                yield message

    def native_output(self) -> NativeOutput:
        """Return the file for prints of native libraries: the parent's if it reads one, else a new one."""
        return NativeOutput(self.native)


def be_child(module: str) -> NoReturn:
    """Be the child. It ends without clean-up by libraries, which may print or abort when all work is done."""
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    code = 1
    try:
        die_with_the_parent()
        spare_pandas()
        envelope = _message(sys.stdin.buffer.readline())
        if envelope is not None:  # else the parent has ended before it asked for anything
            for secret in envelope["secrets"]:
                remember_secret(secret)
            _serve(module, Asked(envelope["request"], _say_to(messages), envelope["native"]))
            code = 0
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException as error:  # noqa: BLE001  a traceback is printed as Python does, but without secrets
        _print_traceback(error)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        messages.close()
    os._exit(code)


def _serve(module: str, asked: Asked) -> None:
    may_be_ended()
    threading.excepthook = lambda failed: _print_traceback(failed.exc_value)
    with warnings_to(lambda *warning: asked.say(warning=warning)):
        child: ChildModule = importlib.import_module(module)
        child.main(asked)


def _say_to(messages: BinaryIO) -> Say:
    lock = threading.Lock()

    def say(blob: bytes | None = None, /, **message: Any) -> None:
        told = message if blob is None else {**message, "blob": len(blob)}
        line = f"{json.dumps(told)}\n".encode()
        with lock:
            try:
                messages.write(line)
                messages.write(blob or b"")
                messages.flush()
            except BrokenPipeError:  # the parent has ended, and whatever it was asked for
                os._exit(1)

    return say


def _print_traceback(error: BaseException | None) -> None:
    if error is not None:
        with suppress(OSError, ValueError):
            import traceback  # noqa: PLC0415  only when something is wrong

            sys.stderr.write(safe(without_secrets("".join(traceback.format_exception(error)))))
            sys.stderr.flush()


def die_with_the_parent() -> None:
    """Ask Linux to kill this process when its parent is gone, so no orphan keeps running."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
