"""`ortdeploy watch`: when it applies, what it hands to the apply, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, Cli, read_rows
from support.forks import start_program

from ortdeploy.cli.command_line.arguments import build_parser
from ortdeploy.cli.commands import watch
from ortdeploy.cli.commands.watch import ToldOfWatch, Watch, apply_arguments
from ortdeploy.cli.signals import StopFlag
from ortdeploy.events import log
from ortdeploy.process.program import Program

LINES = MANIFEST.replace("path: data.npy", "path: '*.npy'")


def test_a_person_at_a_terminal_is_told_what_is_watched_when_it_applies_next_and_that_it_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    told = ToldOfWatch(build_parser().parse_args(["watch", "pump.yaml", "--every", "60s"]))
    told.begin()
    told.waits(stops=False)
    told.waits(stops=True)
    told.end()
    first, waiting, last = capsys.readouterr().err.splitlines()
    assert first.startswith("Watching pump.yaml and the inputs.")
    assert re.search(r"the next apply is when a file changes, or at \d\d:\d\d:\d\d\.$", waiting)
    assert last.startswith("Stopped watching pump.yaml.")


class World:
    """A clock that only waiting moves, and files whose states come one after the other; the last one stays."""

    def __init__(self, states: str, applies: int, settle: float = 0) -> None:
        self.states, self.applies, self.settle = list(states), applies, settle
        self.now = 0.0
        self.applied: list[float] = []

    def look(self) -> str:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def apply(self) -> bool:
        self.applied.append(self.now)
        return len(self.applied) == self.applies

    def wait(self, seconds: float) -> bool:
        assert seconds > 0
        self.now += seconds
        return False

    def run(self, every: float) -> list[float]:
        self.watch(self.wait).until_stopped(every)
        return self.applied

    def watch(self, wait: Callable[[float], bool]) -> Watch:
        return Watch(look=self.look, apply=self.apply, wait=wait, clock=lambda: self.now, settle=lambda: self.settle)


@pytest.mark.parametrize(
    ("states", "applied"),
    [
        ("a", [0, 60, 120]),  # nothing changes: when it is time
        ("aabb", [0, 3, 63]),  # a change, once it is the same in two looks
        ("aabcdd", [0, 5, 65]),  # still written to
        ("aaba", [0, 60, 120]),  # back to what it was
        ("abb", [0, 2, 62]),  # changed while the apply ran
    ],
)
def test_when_it_applies(states: str, applied: list[float]) -> None:
    assert World(states, 3).run(60) == applied


@pytest.mark.parametrize(
    ("states", "settle", "applied"),
    [
        ("a", 5, [0, 5, 65]),  # a file may have changed just before the start
        ("aaaaaaaabb", 5, [0, 5, 8, 13]),  # once for the change, and once when it is stable
        ("abccc", 5, [0, 3, 8]),  # changed again: stable later
        ("a", 90, [0, 60, 120]),  # never later than when it is time
    ],
)
def test_it_applies_again_when_files_are_stable(states: str, settle: float, applied: list[float]) -> None:
    assert World(states, len(applied), settle).run(60) == applied


def test_files_that_never_rest_are_applied_when_it_is_time() -> None:
    states = "".join(map(chr, range(100, 400)))
    assert World(states, 3).run(30) == [0, 30, 60]


def test_a_signal_while_it_waits_ends_it() -> None:
    world = World("a", 9)
    world.watch(lambda _: True).until_stopped(60)
    assert world.applied == [0]


def test_the_apply_gets_the_same_flags() -> None:
    given = [
        "--profile",
        "p",
        "--overlay",
        "o.yaml",
        "--overlay=-x",
        "--set",
        "a=1",
        "--set",
        "b=2",
        "--label",
        "line=paint",
        "--allow-root",
        "/",
        "--state-dir",
        "s",
        "--log-file",
        "l",
        "--log-format",
        "json",
        "--color",
        "never",
        "--format",
        "json",
        "--job",
        "j",
        "--exclude",
        "k",
        "-v",
        "--",
        "m.yaml",
        "-n.yaml",
    ]
    watching = build_parser("watch").parse_args(["watch", "--every", "1h", *given])
    apply = build_parser("apply").parse_args(apply_arguments(watching))
    own = {"command", "new_run", "last_good", "shard", "engine", "workers", "choose"}
    same = vars(apply).keys() - own
    assert {name: vars(apply)[name] for name in same} == {name: vars(watching)[name] for name in same}
    assert vars(watching).keys() - {"command", "every"} <= same
    plain = build_parser("watch").parse_args(["watch", "m.yaml"])
    assert plain.every == 300
    assert vars(build_parser("apply").parse_args(apply_arguments(plain)))["jobs"] is None


class Committing:
    """An apply that is told to stop while it runs, or before it is there to be told, and takes its time to commit."""

    ended_by = None

    def __init__(self, stopped: StopFlag) -> None:
        self.stopped, self.told = stopped, list[int]()
        self.waits = 0

    def wait(self, _: float) -> int | None:
        self.waits += 1
        if self.waits == 2 and not self.told:
            signal.raise_signal(signal.SIGTERM)
        return 143 if self.waits == 4 else None

    def send_signal(self, number: int) -> None:
        self.told.append(number)


@pytest.mark.parametrize("is_early", [False, True])
def test_a_signal_is_handed_on_and_systemd_is_asked_for_time(
    monkeypatch: pytest.MonkeyPatch, *, is_early: bool
) -> None:
    stopped = StopFlag()
    program = Committing(stopped)

    def start(_: list[str]) -> Committing:
        if is_early:
            signal.raise_signal(signal.SIGTERM)
        return program

    said: list[dict[str, int | str]] = []
    monkeypatch.setattr(watch, "Program", start)
    monkeypatch.setattr(watch, "notify", lambda **states: said.append(states))
    arguments = build_parser("watch").parse_args(["watch", "m.yaml"])
    with stopped.installed():
        assert watch.apply_once(arguments, stopped, watch.Heart())
        assert watch.apply_once(arguments, stopped, watch.Heart())  # begins no other
    assert program.told == [signal.SIGTERM]
    more_time = [one for one in said if "STATUS" not in one]
    assert more_time == [{"STOPPING": 1, "EXTEND_TIMEOUT_USEC": 30_000_000}] * (3 if is_early else 2)
    assert said[-1] == {"STATUS": "the last apply ended with exit code 143"}


class Jobs:
    """Progress files of jobs, a clock, and what a heart has told so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states: dict[str, tuple[int, int]] = {}
        self.now = 0.0
        self.beats = 0
        monkeypatch.setenv("WATCHDOG_USEC", "20000000")
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(watch, "notify", self.note)
        self.heart = watch.Heart(lambda: dict(self.states))
        self.heart.beat()
        assert self.beats == 1

    def note(self, **states: int) -> None:
        self.beats += states == {"WATCHDOG": 1}

    def told_after(self, seconds: float, **states: int) -> bool:
        """Whether systemd is told within a time in which job files have come to these states."""
        self.states |= {name: (state, 1) for name, state in states.items()}
        before = self.beats
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.heart.beat()
        return self.beats > before


def test_the_watchdog_is_fed_by_jobs_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch)
    jobs.states = {"killed long ago": (1, 1)}
    jobs.heart.begin()
    assert jobs.told_after(10)  # it is planned, and no job runs yet
    assert jobs.told_after(10, job=1)
    assert not jobs.told_after(1000)  # a run hangs
    assert jobs.told_after(1, job=2)
    assert not jobs.told_after(1000)
    jobs.states = {}  # the job has ended
    assert jobs.told_after(10)


def test_a_commit_gets_more_time_while_something_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch)
    jobs.heart.begin()
    jobs.told_after(250, job=1)
    assert jobs.heart.may_still_commit()
    jobs.told_after(250, job=2)
    assert jobs.heart.may_still_commit()
    jobs.told_after(301)
    assert not jobs.heart.may_still_commit()


@pytest.mark.parametrize("every", ["0s", "5", "min", "1.5s", "25h", "-1s", "5m", "٣s"])
def test_a_time_that_is_none_is_refused(cli: Cli, deployment: Path, every: str) -> None:
    refused = cli("watch", deployment / "m.yaml", f"--every={every}")
    assert refused.code == 64
    assert "is not a time from 1s to 24h" in refused.err


def test_a_job_that_there_is_not_is_refused_at_once(cli: Cli, deployment: Path) -> None:
    refused = cli("watch", deployment / "m.yaml", "--job", "rum")
    assert refused.code == 64
    assert 'there is no job "rum"' in refused.err


@pytest.fixture(name="systemd")
def listen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path_factory.mktemp("systemd") / "s"))
        yield one


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="has no Unix sockets")
def test_it_applies_what_arrives_survives_what_is_refused_and_ends_cleanly(
    deployment: Path, systemd: socket.socket
) -> None:
    (deployment / "m.yaml").write_text(LINES)
    env = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "3600000000"}
    with start_program(
        ["watch", "m.yaml", "--every", "1h", "--log-format", "json"],
        cwd=deployment, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8",
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            applied = (event["code"] for event in map(json.loads, process.stderr) if event["event"] == "watch.applied")
            assert next(applied) == 0
            assert len(read_rows(deployment / "outbox/run")) == 20
            np.save(deployment / "more.npy", np.ones((5, 4), np.float32))
            assert next(applied) == 0
            assert len(read_rows(deployment / "outbox/run")) == 25
            (deployment / "m.yaml").write_text("jobz: 1\n")
            np.save(deployment / "third.npy", np.ones((5, 4), np.float32))
            while len(read_rows(deployment / "outbox/run")) < 30:  # what ran before goes on
                assert next(applied) == 1
            (deployment / "m.yaml").write_text(LINES)
            os.utime(deployment / "m.yaml", (7, 7))
            assert next(applied) == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()
    systemd.setblocking(False)
    said = list(_datagrams(systemd))
    assert [one for one in said if not one.startswith(b"STATUS=")] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert said[-2] == b"STATUS=the last apply ended with exit code 0"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc, and systemd is on Linux")
@pytest.mark.parametrize(
    "number", [signal.SIGABRT, signal.SIGKILL], ids=["as the watchdog does", "as KillMode=mixed does"]
)
def test_after_the_watchdog_has_ended_it_in_a_run_every_row_is_there_once(deployment: Path, number: int) -> None:
    """The run cannot come to its end before: nobody reads what it logs, and the pipe holds little of it."""
    import fcntl  # noqa: PLC0415  not on Windows

    np.save(deployment / "data.npy", np.arange(2400, dtype=np.float32).reshape(600, 4))
    text = LINES.replace("size: 8", "size: 2").replace("format: jsonl", "format: jsonl, rows_per_part: 10")
    (deployment / "m.yaml").write_text(text)
    with watching(deployment) as process:
        assert process.stderr is not None
        fcntl.fcntl(process.stderr.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        committed = (line for line in process.stderr if '"event": "part.committed"' in line)
        next(committed), next(committed)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (child,) = (
            one for one in children if b"apply" in Path(f"/proc/{one}/cmdline").read_bytes()
        )  # the other looks on
        process.send_signal(signal.SIGABRT)
        os.kill(int(child), number)
        assert process.wait() == -signal.SIGABRT
        for _ in process.stderr:  # until the child has ended, too
            pass
    assert 0 < len(read_rows(deployment / "outbox/run")) < 600
    with watching(deployment) as process:
        assert process.stderr is not None
        applied = (event["code"] for event in map(json.loads, process.stderr) if event["event"] == "watch.applied")
        assert next(applied) == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert [row["row"] for row in read_rows(deployment / "outbox/run")] == list(range(600))


@contextmanager
def watching(deployment: Path) -> Iterator[Any]:
    """Run `watch` until the block ends."""
    with start_program(
        ["watch", "m.yaml", "--every", "1h", "--log-format", "json"],
        cwd=deployment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8",
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def test_an_apply_that_crashes_is_told_by_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that crashes is Python itself, which raises the signal."""
    stopped = StopFlag()
    crash = f"import signal; signal.raise_signal({int(signal.SIGSEGV)})"

    class Crashing(Program):
        def __init__(self, _arguments: object) -> None:
            self._process = subprocess.Popen([sys.executable, "-c", crash])

    monkeypatch.setattr(watch, "Program", Crashing)
    said: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(log, "warning", lambda event, **more: said.append((event, more)))
    arguments = build_parser("watch").parse_args(["watch", "m.yaml"])
    assert not watch.apply_once(arguments, stopped, watch.Heart())
    ((event, more),) = said
    assert (event, more["code"], more["signal"]) == ("watch.applied", 128 + signal.SIGSEGV, "SIGSEGV")


def _datagrams(sent: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield sent.recv(4096)
