"""Processes that are forks of this one, which has every library loaded: they begin in hundredths of a second.

A fork is like `subprocess.Popen` of a Python program in all but its beginning, and in the memory that it shares with
this process. Whatever is about how a process begins, or measures one, starts a new Python instead.
"""

import faulthandler
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ortdeploy import api, events
from ortdeploy.cli.main import run
from ortdeploy.process import child

CAN_FORK = sys.platform == "linux"


class Fork(subprocess.Popen[Any]):
    """A fork of this process that does one thing and ends."""

    def __init__(self, do: Callable[[], object], **settings: Any) -> None:
        self._do = do
        super().__init__([sys.executable], **settings)

    def _execute_child(self, *given: Any) -> None:
        """Fork instead of starting a program; what is given, and how it is called, is the standard library's."""
        known = inspect.signature(super()._execute_child).bind(*given).arguments  # type: ignore[misc]  # no public name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads that are in no library
            self.pid = os.fork()
        if self.pid == 0:
            _be_the_fork(self._do, known)
        self._child_created = True
        self._close_pipe_fds(*(known[end] for end in _PIPES))  # type: ignore[attr-defined]  # as above


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _be_the_fork(do: Callable[[], object], known: Mapping[str, Any]) -> None:
    code: Any = 1
    try:
        _begin(known)
        do()
        code = 0
    except SystemExit as ended:
        code = (ended.code or 0) if isinstance(ended.code, int | None) else 1
    except BaseException as error:  # noqa: BLE001  as Python does at the end of a program
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _begin(known: Mapping[str, Any]) -> None:
    """Have the streams, files, folder and settings of a new program; of this process nothing is collected any more."""
    gc.freeze()
    faulthandler.disable()
    for number, end in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if known[end] != -1:
            os.dup2(known[end], number)
    _close_all_but({0, 1, 2, *known["pass_fds"]})
    for one in known["pass_fds"]:
        os.set_inheritable(one, True)
    os.chdir(known["cwd"] or ".")
    if known["env"] is not None:
        os.environ.clear()
        os.environ.update(known["env"])
    if known["start_new_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  a number
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    warnings.simplefilter("ignore")
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001  there is no public list
        one.atexit = False  # as s3fs's, which wait for threads that a fork does not have, 0.1 s for each file system
    events.log.send_to(None)
    events._context.set({})  # noqa: SLF001  the blocks of the process that was forked


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  numbers
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def start_program(arguments: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **settings: Any) -> Any:
    """Start the program with these arguments; as a fork where there are any."""
    shown = [str(argument) for argument in arguments]
    if not CAN_FORK:
        return subprocess.Popen(
            [sys.executable, "-m", "ortdeploy", *shown], env=env and {**os.environ, **env}, **settings
        )
    return Fork(lambda: be_the_program(shown), env=env and {**os.environ, **env}, **settings)


def be_the_program(arguments: Sequence[str]) -> None:
    """Run the program with these arguments, and end; its children are forks too."""
    sys.argv = ["ortdeploy", *arguments]
    with children_as_forks():
        run()


@contextmanager
def programs_as_forks() -> Iterator[None]:
    """Have the programs that the Python API starts be forks of this process."""

    def popen(command: list[str], **settings: Any) -> "subprocess.Popen[Any]":
        ours = child.program_command()
        assert command[: len(ours)] == ours
        return Fork(lambda: be_the_program(command[len(ours) :]), **settings)

    stand_in = types.SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    with pytest.MonkeyPatch.context() as patch:
        if CAN_FORK:
            patch.setattr(api, "subprocess", stand_in)
        yield


_CHILD = child.child_command("")[:-1]


@contextmanager
def children_as_forks() -> Iterator[None]:
    """Have the children that this process starts be forks of it, so that no test waits for a new Python."""

    def popen(command: list[str], **settings: Any) -> "subprocess.Popen[Any]":
        if command[:-1] != _CHILD:
            return subprocess.Popen(command, **settings)
        return Fork(lambda: child.be_child(command[-1]), **settings)

    stand_in = types.SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    with pytest.MonkeyPatch.context() as patch:
        if CAN_FORK:
            patch.setattr(child, "subprocess", stand_in)
        yield
