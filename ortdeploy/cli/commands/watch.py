"""`ortdeploy watch`: apply whenever a manifest changes or input arrives, and every so often, until a signal comes."""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog

from ortdeploy.cli.commands.shared import load_options, start_logging
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_PAUSED
from ortdeploy.cli.signals import StopFlag
from ortdeploy.planning.arrivals import Arrivals
from ortdeploy.planning.workflow import select_jobs
from ortdeploy.process.program import Program
from ortdeploy.process.supervision import notify, watchdog_seconds

log = structlog.get_logger()

_BREATH = 0.5
"""Seconds after which a signal is noticed at the latest, and systemd is told something."""
_SHARE = 0.005
"""Of a processor, what looking at files may take."""
_SHORTEST = 1.0
"""Seconds between two looks: files that are the same in both have been written."""
_EXTENSION = 30
"""Seconds that systemd is asked for again and again, while an apply that was told to stop commits what it has."""
_WELL = frozenset({EXIT_OK, EXIT_PAUSED})


def run(arguments: argparse.Namespace) -> int:
    """Apply until a signal comes. Whatever an apply ends with, the next one is made."""
    stopped = StopFlag()
    arrivals = Arrivals(arguments.paths, load_options(arguments, digest=False))
    if arrivals.jobs:
        select_jobs(arguments.jobs, arguments.excluded, arrivals.jobs)
    with ExitStack() as stack:
        start_logging(arguments, stack)
        stack.enter_context(stopped.installed())
        heart = Heart()
        log.info("watch.started", paths=arguments.paths, every=arguments.every)
        notify(READY=1)
        watch = Watch(
            look=arrivals.look,
            apply=lambda: apply_once(arguments, stopped, heart),
            wait=lambda seconds: _wait(seconds, stopped, heart),
            clock=time.monotonic,
        )
        watch.until_stopped(arguments.every)
        notify(STOPPING=1)
        log.info("watch.stopped")
    return EXIT_OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """When to apply. `look` returns what all files are now; `wait` waits so many seconds, or tells by True to stop.

    `apply` also tells by True to stop.
    """

    look: Callable[[], str]
    apply: Callable[[], bool]
    wait: Callable[[float], bool]
    clock: Callable[[], float]

    def until_stopped(self, every: float) -> None:
        """Apply, and again whenever files are others than before the last time, or after `every` seconds."""
        while True:
            applied = self.look()
            if self.apply() or self._wait_for_work(applied, every):
                return

    def _wait_for_work(self, applied: str, every: float) -> bool:
        """Wait until files have changed and no longer change, or for `every` seconds; return whether to stop."""
        due = self.clock() + every
        before, pause = applied, _SHORTEST
        while self.clock() < due:
            if self.wait(min(pause, due - self.clock())):
                return True
            began = self.clock()
            now = self.look()
            pause = max(_SHORTEST, (self.clock() - began) / _SHARE) if now == applied else _SHORTEST
            if now == before != applied:
                return False
            before = now
        return False


class Heart:
    """Tells systemd that this process lives, half as often again as it asks to be told."""

    def __init__(self) -> None:
        """Ask how often."""
        life = watchdog_seconds()
        self._pause = None if life is None else life / 2
        self._last = float("-inf")

    def beat(self) -> None:
        """Tell it if it is time."""
        now = time.monotonic()
        if self._pause is not None and now - self._last >= self._pause - _BREATH:
            self._last = now
            notify(WATCHDOG=1)


def _wait(seconds: float, stopped: StopFlag, heart: Heart) -> bool:
    due = time.monotonic() + seconds
    while not stopped() and (left := due - time.monotonic()) > 0:
        heart.beat()
        time.sleep(min(left, _BREATH))
    return stopped()


def apply_once(arguments: argparse.Namespace, stopped: StopFlag, heart: Heart) -> bool:
    """Apply in a process of its own, which gets the signals that come meanwhile; return whether to stop."""
    if stopped():
        return True
    began = time.monotonic()
    program = Program(apply_arguments(arguments))
    stopped.forward = program.send_signal
    if stopped():  # before it was there to be told
        program.send_signal(stopped.exit_code - 128)
    while (code := program.wait(_BREATH)) is None:
        heart.beat()
        if stopped():
            notify(STOPPING=1, EXTEND_TIMEOUT_USEC=_EXTENSION * 1_000_000)
    stopped.forward = lambda _number: None
    tell = log.info if code in _WELL else log.warning
    tell("watch.applied", code=code, seconds=round(time.monotonic() - began, 3))
    return stopped()


_ONE_VALUE = ("profile", "state_dir", "log_format", "log_file", "color", "format")
_SEVERAL = {"overlays": "--overlay", "sets": "--set", "roots": "--allow-root", "jobs": "--job", "excluded": "--exclude"}
_SWITCHES = ("quiet", "verbose")


def apply_arguments(arguments: argparse.Namespace) -> list[str]:
    """Return the command line of an apply with the same flags; values are joined to them, as they may begin with -."""
    given = vars(arguments)
    one = [f"--{name.replace('_', '-')}={given[name]}" for name in _ONE_VALUE if given[name] is not None]
    several = [f"{flag}={value}" for name, flag in _SEVERAL.items() for value in given[name] or ()]
    switches = [f"--{name}" for name in _SWITCHES if given[name]]
    return ["apply", *one, *several, *switches, "--", *arguments.paths]
