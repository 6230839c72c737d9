"""What a process says that can no longer speak for itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.forks import CAN_FORK, Fork

from ortdeploy.cli.signals import StopFlag
from ortdeploy.process import last_words
from ortdeploy.process.held_signals import HeldSignals

needs_forks = pytest.mark.skipif(not CAN_FORK, reason="only a fork is watched")


@pytest.mark.parametrize(
    ("doing", "rows", "said"),
    [
        ({}, [], "the process that ran ortdeploy apply"),
        ({"model": "m", "session": "cpu"}, [], 'the process that opened session cpu of model "m"'),
        ({"model": "m", "job": "j"}, [], 'the process that ran job j on model "m"'),
        ({"model": "m", "job": "j", "session": "cpu"}, [(0, 3)], 'the process that ran rows 0 to 3 of job j on session cpu of model "m"'),
        ({"model": "m", "job": "j"}, [(4, 4), (7, 9)], 'the process that ran rows 4, 7 to 9 of job j on model "m"'),
    ],
)  # fmt: skip
def test_what_was_done_is_told(doing: Mapping[str, str], rows: list[tuple[int, int]], said: str) -> None:
    words = last_words.last_words("apply", doing, rows, crash="SIGFPE", was_asked=False, ran_out=False)
    assert words.startswith(f"{said} was ended by SIGFPE, ")
    assert "Give the same apply again" in words


@pytest.mark.parametrize("command", ["apply", "retry", "try", "plan", ""])
@pytest.mark.parametrize("how", ["SIGSEGV", "SIGTERM", "memory ran out", "SIGKILL"])
@pytest.mark.parametrize("doing", [{}, {"model": "m", "session": "s"}, {"model": "m", "job": "j"}])
def test_the_end_and_what_to_do_is_told(command: str, how: str, doing: Mapping[str, str]) -> None:
    crash = how if how == "SIGSEGV" else None
    was_asked, ran_out = how == "SIGTERM", how == "memory ran out"
    words = last_words.last_words(command, doing, [], crash=crash, was_asked=was_asked, ran_out=ran_out)
    assert how in words
    assert ("memory" in words) == (how in {"memory ran out", "SIGKILL"})
    assert words.endswith(".")
    assert words.count(". ") >= 1  # how it ended, and what to do
    assert "  " not in words


def watched(*ending: str, folder: Path, doing: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """Start a process that is watched, and ends by a signal or leaves."""

    def do() -> None:
        last_words.begin("apply")
        if doing is not None:
            last_words.doing(model="m", session="cpu")
            last_words.doing(**doing)
            lanes = [last_words.Lane() for _ in range(3)]
            lanes[0].run(0, 3)
            lanes[1].run(4, 2**40)
            lanes[1].rest()
            lanes[2].block(range(6, 16))
            lanes[2].part(range(2, 3))
        for one in ending:
            if one == "leave":
                last_words.leave()
            else:
                os.kill(os.getpid(), getattr(signal, one))

    return Fork(do, cwd=folder, env=None, stderr=subprocess.PIPE, encoding="utf-8")


@needs_forks
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL", "SIGKILL", "SIGTERM", "SIGHUP"])
def test_a_process_that_dies_is_spoken_for_and_its_status_stays(name: str, tmp_path: Path) -> None:
    with watched(name, folder=tmp_path, doing={"model": "m", "job": "j"}) as process:
        _, said = process.communicate()
    assert process.returncode == -getattr(signal, name)
    assert said.startswith('ortdeploy: the process that ran rows 0 to 3, 8 of job j on session cpu of model "m" ')
    asked = "SIGTERM or SIGHUP"
    assert (
        "was killed, as by SIGKILL" if name == "SIGKILL" else f"was ended by {asked if name in asked else name}"
    ) in said
    assert ("memory" in said) == (name == "SIGKILL")
    assert said.count("\n") == 1


@needs_forks
@pytest.mark.parametrize("handled", ["before", "after"])
def test_a_request_that_comes_before_or_behind_a_handler_of_it_is_told(handled: str, tmp_path: Path) -> None:
    def do() -> None:
        stopped = StopFlag()
        if handled == "before":
            last_words.begin("plan")
        with stopped.installed():
            if handled == "after":
                last_words.begin("plan")
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopped()
        os.kill(os.getpid(), signal.SIGTERM)

    with Fork(do, cwd=tmp_path, env=None, stderr=subprocess.PIPE, encoding="utf-8") as process:
        _, said = process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert "ran ortdeploy plan was ended by SIGTERM or SIGHUP" in said


@needs_forks
@pytest.mark.parametrize("is_handled", [False, True])
def test_a_fork_of_a_watched_process_is_asked_to_end_as_before(is_handled: bool, tmp_path: Path) -> None:
    def do() -> None:
        last_words.begin("apply")
        stopped = StopFlag()
        with stopped.installed() if is_handled else nullcontext():
            if child := os.fork():
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                os.write(2, str(code).encode())
                last_words.leave()
                os._exit(0)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(int(stopped()))

    with Fork(do, cwd=tmp_path, env=None, stderr=subprocess.PIPE, encoding="utf-8") as process:
        _, said = process.communicate()
    assert said == ("1" if is_handled else "-15")


@needs_forks
@pytest.mark.parametrize("name", ["=", "a=b", "größe", '"', "\\", "\udcff"])
def test_names_are_told_as_they_are(name: str, tmp_path: Path) -> None:
    with watched("SIGSEGV", folder=tmp_path, doing={"model": name, "job": name}) as process:
        _, said = process.communicate()
    shown = name.encode(errors="replace").decode()
    assert f'rows 0 to 3, 8 of job {shown} on model "{shown}"' in said


@needs_forks
def test_names_too_long_for_the_page_are_left_out(tmp_path: Path) -> None:
    with watched("SIGSEGV", folder=tmp_path, doing={"model": "ö" * 10_000}) as process:
        _, said = process.communicate()
    assert said.startswith("ortdeploy: the process that ")
    assert "SIGSEGV" in said


@needs_forks
def test_a_process_that_takes_its_leave_is_not_spoken_for(tmp_path: Path) -> None:
    for ending in (["leave"], ["leave", "SIGKILL"], ["leave", "SIGTERM"]):
        with watched(*ending, folder=tmp_path) as process:
            assert process.communicate()[1] == ""


@needs_forks
def test_a_fork_of_a_watched_process_is_not_watched(tmp_path: Path) -> None:
    def do() -> None:
        last_words.begin("apply")
        child = os.fork()
        if child == 0:
            last_words.leave()  # of whom
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        os.kill(os.getpid(), signal.SIGSEGV)

    with Fork(do, cwd=tmp_path, env=None, stderr=subprocess.PIPE, encoding="utf-8") as process:
        _, said = process.communicate()
    assert said.count("ortdeploy: ") == 1
    assert "SIGSEGV" in said


@needs_forks
@pytest.mark.process
def test_without_room_for_a_process_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", fail)
    last_words.begin("apply")
    last_words.doing(model="m", job="j")
    last_words.Lane().run(0, 1)
    last_words.leave()


def test_what_is_noted_of_a_crash_is_its_signal() -> None:
    for text, signal_ in {
        "Segmentation fault": "SIGSEGV", "Floating point exception": "SIGFPE", "Floating-point exception": "SIGFPE",
        "Aborted": "SIGABRT", "Bus error": "SIGBUS", "Illegal instruction": "SIGILL", "no room": "no room",
    }.items():  # fmt: skip
        assert last_words._crash_in(f"before\nFatal Python error: {text}\n\nCurrent thread") == signal_  # noqa: SLF001
    assert last_words._crash_in('{"pid": 1}\n') is None  # noqa: SLF001


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_signals_that_are_held_are_handled_at_the_end(request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    seen: list[bool] = []

    def hold() -> None:
        with HeldSignals():
            signal.raise_signal(signal.SIGINT)
            seen.append(True)

    with pytest.raises(KeyboardInterrupt):
        hold()
    assert seen
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with HeldSignals():
        pass
