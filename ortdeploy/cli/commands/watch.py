"""`ortdeploy watch`: apply when a manifest changes, when input arrives, and at intervals, until a signal comes."""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.commands.shared import start_logging
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_PAUSED
from ortdeploy.cli.signals import StopFlag
from ortdeploy.events import log
from ortdeploy.files.names import STATE_DIR
from ortdeploy.ledger.live_progress import live_states
from ortdeploy.manifest.loader import find_manifests
from ortdeploy.planning.file_selection import Arrivals
from ortdeploy.planning.job_names import select_jobs
from ortdeploy.process.program import Program
from ortdeploy.process.supervision import notify, watchdog_seconds
from ortdeploy.terminal_text import printable

_BREATH = 0.5
"""Seconds within which a signal is noticed, and between two messages to systemd."""
_SHARE = 0.005
"""The share of a processor that looking at files may take."""
_SHORTEST = 1.0
"""Seconds between two looks at the files; a file that is the same in both is completely written."""
_EXTENSION = 30
"""Seconds by which systemd is asked to extend its timeout while a stopping apply commits its rows."""
_COMMIT = 300
"""Seconds without progress after which a stopping apply gets no more time."""
_WELL = frozenset({EXIT_OK, EXIT_PAUSED})


def run(arguments: argparse.Namespace) -> int:
    """Apply again and again until a signal comes, whatever exit code an apply has."""
    stopped = StopFlag()
    taken = getattr(arguments, "taken", None)
    arrivals = taken.arrivals if taken else Arrivals(arguments.paths, load_options(arguments, digest=False))
    if arrivals.jobs:
        select_jobs(arguments.jobs, arguments.excluded, arrivals.jobs)
    with ExitStack() as stack:
        start_logging(arguments, stack)
        stack.enter_context(stopped.installed())
        heart = Heart(lambda: _progress_of(arguments))
        log.info("watch.started", paths=_watched(arguments), every=arguments.every)
        notify(READY=1)
        told = ToldOfWatch(arguments)
        told.begin()

        def apply() -> bool:
            stops = apply_once(arguments, stopped, heart)
            told.waits(stops=stops)
            return stops

        watch = Watch(
            look=arrivals.look,
            apply=apply,
            wait=lambda seconds: _wait(seconds, stopped, heart),
            clock=time.monotonic,
            settle=lambda: arrivals.stable_for,
        )
        watch.until_stopped(arguments.every)
        notify(STOPPING=1)
        log.info("watch.stopped")
        told.end()
    return EXIT_OK


class ToldOfWatch:
    """What a person at a terminal is told of a watch; elsewhere the log has it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._paths = ", ".join(map(printable, _watched(arguments)))
        self._every = arguments.every
        self._is_shown = sys.stderr.isatty() and not arguments.quiet

    def begin(self) -> None:
        """Say what is watched."""
        self._say(f"Watching {self._paths} and the inputs. Ctrl-C stops after the current batch.")

    def waits(self, *, stops: bool) -> None:
        """Say when the next apply comes at the latest."""
        if not stops:
            due = datetime.now(UTC).astimezone() + timedelta(seconds=self._every)
            self._say(f"Waiting: the next apply is when a file changes, or at {due:%H:%M:%S}.")

    def end(self) -> None:
        """Say goodbye."""
        self._say(f"Stopped watching {self._paths}. Finished rows are kept; the next apply continues.")

    def _say(self, text: str) -> None:
        if self._is_shown:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


class Watch(Struct, frozen=True, kw_only=True):
    """Decides when to apply.

    `look` returns a text that changes when files change. `wait` waits for some seconds. `wait` and `apply` return True
    to stop. An apply leaves files that have changed in the last seconds that `settle` returns.
    """

    look: Callable[[], str]
    apply: Callable[[], bool]
    wait: Callable[[float], bool]
    clock: Callable[[], float]
    settle: Callable[[], float]

    def until_stopped(self, every: float) -> None:
        """Apply, and apply again when files have changed since before the last time, or after `every` seconds.

        An apply that finds a change may come too early for files that must first be stable, so another one follows.
        """
        before = None
        while True:
            applied = self.look()
            settle = self.settle() if applied != before else 0
            before = applied
            if self.apply() or self._wait_for_work(applied, min(settle or every, every)):
                return

    def _wait_for_work(self, applied: str, every: float) -> bool:
        """Wait until files have changed and are stable again, or for `every` seconds; return whether to stop."""
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
    """Feeds the watchdog of systemd, twice in its interval, unless a job hangs.

    `look` returns the states of the progress files of all jobs. While this apply has such a file, a job runs, and the
    watchdog is fed only after the job has progressed.
    """

    def __init__(self, look: Callable[[], dict[str, tuple[int, int]]] = dict) -> None:
        """Read the interval of the watchdog."""
        life = watchdog_seconds()
        self._pause = None if life is None else life / 2
        self._last = float("-inf")
        self._look = look
        self._others = self._seen = dict[str, tuple[int, int]]()
        self._progressed = time.monotonic()

    def begin(self) -> None:
        """Note that an apply begins; progress files that exist now are left over from killed runs."""
        self._others, self._progressed = self._look(), time.monotonic()

    def beat(self) -> None:
        """Feed the watchdog if it is time and no job hangs."""
        now = time.monotonic()
        if self._pause is None or now - self._last < self._pause - _BREATH:
            return
        if self._runs_no_job(now) or self._progressed > self._last:
            self._last = now
            notify(WATCHDOG=1)

    def may_still_commit(self) -> bool:
        """Return whether a job has progressed in the last minutes."""
        now = time.monotonic()
        self._runs_no_job(now)
        return now - self._progressed < _COMMIT

    def _runs_no_job(self, now: float) -> bool:
        """Return whether no job of this apply runs; note the time if one has progressed."""
        own = {path: state for path, state in self._look().items() if self._others.get(path) != state}
        if own != self._seen:
            self._seen, self._progressed = own, now
        return not own


def _wait(seconds: float, stopped: StopFlag, heart: Heart) -> bool:
    due = time.monotonic() + seconds
    while not stopped() and (left := due - time.monotonic()) > 0:
        heart.beat()
        time.sleep(min(left, _BREATH))
    return stopped()


def apply_once(arguments: argparse.Namespace, stopped: StopFlag, heart: Heart) -> bool:
    """Apply in another process, which gets the signals of this one; return whether to stop."""
    if stopped():
        return True
    began = time.monotonic()
    heart.begin()
    program = Program(apply_arguments(arguments))
    stopped.forward = program.send_signal
    if stopped():  # before it was there to be told
        program.send_signal(stopped.exit_code - 128)
    while (code := program.wait(_BREATH)) is None:
        heart.beat()
        if stopped() and heart.may_still_commit():
            notify(STOPPING=1, EXTEND_TIMEOUT_USEC=_EXTENSION * 1_000_000)
    stopped.forward = lambda _number: None
    tell = log.info if code in _WELL else log.warning
    by = program.ended_by
    tell("watch.applied", code=code, seconds=round(time.monotonic() - began, 3), signal=by)
    notify(STATUS=f"the last apply ended with exit code {code}" if by is None else f"the last apply was ended by {by}")
    return stopped()


def _progress_of(arguments: argparse.Namespace) -> dict[str, tuple[int, int]]:
    """Return the states of the progress files of the manifests' jobs."""
    beside = {Path(path).absolute().parent / STATE_DIR for path in find_manifests(arguments.paths)[0]}
    folders = {Path(arguments.state_dir)} if arguments.state_dir else beside
    return {path: state for folder in folders for path, state in live_states(folder).items()}


_ONE_VALUE = ("profile", "state_dir", "metrics", "log_format", "log_file", "color", "format")
_SEVERAL = {
    "overlays": "--overlay",
    "sets": "--set",
    "labels": "--label",
    "roots": "--allow-root",
    "jobs": "--job",
    "excluded": "--exclude",
}
_SWITCHES = ("quiet", "verbose")


def apply_arguments(arguments: argparse.Namespace) -> list[str]:
    """Return the command line of an apply with the same flags, each as FLAG=VALUE because values may begin with -."""
    given = vars(arguments)
    one = [f"--{name.replace('_', '-')}={given[name]}" for name in _ONE_VALUE if given[name] is not None]
    several = [f"{flag}={value}" for name, flag in _SEVERAL.items() for value in given[name] or ()]
    switches = [f"--{name}" for name in _SWITCHES if given[name]]
    every = [] if given["every"] is None else [f"--every={given['every']:g}s"]
    taken = getattr(arguments, "taken", None)
    own = taken.flags if taken else ()
    return ["apply", "--last-good", *every, *one, *several, *switches, *own, "--", *_watched(arguments)]


def _watched(arguments: argparse.Namespace) -> list[str]:
    """Return the paths that are applied: manifests, a bundle, or what is installed as @NAME."""
    taken = getattr(arguments, "taken", None)
    return [taken.path] if taken else arguments.paths
