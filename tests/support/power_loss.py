"""Power loss: what a job does to its files, recorded, and every state that the disk may be left in."""

import itertools
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import Status
from support.effort import effort
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.jobs import changed, plan_for, retrying, run_id_of, save

ROWS = 24
EXTRA = 3
UNDONE = "ledger that may be undone"
MOST_AT_ONCE = 4
"""Names that may be kept or undone in every combination; of more, all, none, and each alone."""
EVERY = effort(3, 1)
"""Of the states that may be left, work goes on from each third, or from each."""


@dataclass(frozen=True)
class Event:
    """Something that was done: `write` (not synced yet), `sync`, `name`, `link`, `unlink`, `mkdir`, `folder`, `ledger`."""

    kind: str
    path: str
    target: str = ""
    content: bytes = b""


Names = dict[str, str]
"""Files and folders by path; a file's value is what it was first called, a folder's is empty."""


@dataclass
class Disk:
    """What may be on the disk: contents by file, names as they are durable, and what was done to names since."""

    synced: dict[str, bytes] = field(default_factory=dict)
    names: Names = field(default_factory=dict)
    durable: Names = field(default_factory=dict)
    pending: list[tuple[str, Event, str]] = field(default_factory=list)
    ledgers: tuple[bytes | None, ...] = (None,)

    def apply(self, event: Event) -> None:
        if event.kind.startswith("ledger"):
            before = self.ledgers[-1:] if event.kind == UNDONE else ()
            self.ledgers = (*before, event.content)
        elif event.kind == "sync":
            self.synced[self.names[event.path]] = event.content
        elif event.kind == "folder":
            for folder, one, file in self.pending:
                if folder == event.path:
                    self._do(self.durable, one, file)
            self.pending = [one for one in self.pending if one[0] != event.path]
        elif event.kind == "write":
            self._file(event)
        elif event.kind != "unlink" or event.path in self.names:
            file = self.names.get(event.path, "") if event.target else ""
            self._note(event, file)
            self._do(self.names, event, file)

    def _file(self, event: Event) -> None:
        if event.path not in self.names:
            file = f"{event.path}#{len(self.synced)}"
            self._note(event, file)
            self.names[event.path] = file
        self.synced[self.names[event.path]] = b""

    def _note(self, event: Event, file: str) -> None:
        changed = event.target if event.kind == "link" else event.path
        self.pending.append((str(Path(changed).parent), event, file))

    def _do(self, names: Names, event: Event, file: str) -> None:
        if event.kind == "name":
            names.pop(event.path, None)
            names[event.target] = file
        elif event.kind == "link":
            names[event.target] = file
        elif event.kind == "unlink":
            names.pop(event.path, None)
        else:
            names[event.path] = file

    def states(self) -> Iterator[tuple[Names, bytes | None]]:
        """Yield every state that the power may leave now: each name that is not durable kept, or undone."""
        count = len(self.pending)
        if count <= MOST_AT_ONCE:
            kept: Iterator[Sequence[bool]] = itertools.product([False, True], repeat=count)
        else:
            alone = [[place == one for place in range(count)] for one in range(count)]
            kept = iter([[False] * count, [True] * count, *alone])
        for choice in kept:
            names = dict(self.durable)
            for (_, event, file), is_kept in zip(self.pending, choice, strict=True):
                if is_kept:
                    self._do(names, event, file)
            for ledger in self.ledgers:
                yield names, ledger

    def leave(self, folder: Path, names: Names, ledger: bytes | None) -> tuple[Any, ...]:
        """Put a state into a folder; return what tells it from others. What lies in a folder that is not there is lost."""
        for place in ("work", "state"):
            (folder / place).mkdir(parents=True)
        left, first = [], dict[str, Path]()
        for name in sorted(names, key=lambda name: name.count("/")):
            if not (folder / name).parent.is_dir():
                continue
            if names[name] in first:
                os.link(first[names[name]], folder / name)
            elif names[name]:
                (folder / name).write_bytes(self.synced[names[name]])
                first[names[name]] = folder / name
            else:
                (folder / name).mkdir(exist_ok=True)
            left.append((name, self.synced.get(names[name])))
        state = folder / STATE
        if ledger is not None and state.is_dir():
            (state / FILE).write_bytes(ledger)
            left.append((FILE, ledger))
        return tuple(left)


STATE = "state/deep/state"
"""The state directory, on a file system that is not the output's."""


def execute_there(
    folder: Path, plan: Plan, runtime: FakeRuntime, ends: Collection[Status] = (Status.DONE, Status.NOTHING_TO_DO)
) -> Status:
    """Run a plan whose ledger is on another file system."""
    out = folder / "work/out"
    with open_ledger(folder / STATE) as ledger:
        assert ledger.output(ledger.key(out)) or not out.exists() or not any(out.iterdir()), "a plan calls it foreign"
        execution = Execution(
            plan=plan,
            run_id=run_id_of(plan),
            runtime=runtime,
            ledger=ledger,
            observer=Counter(),
            stop=lambda: False,
        )
        (result,) = execution.run()
    assert result.status in ends, result.reason
    return result.status


@contextmanager
def recording(folder: Path) -> Iterator[list[Event]]:
    """Record what is done to the files of a job's folder."""
    events: list[Event] = []

    def note(kind: str, path: str | Path, target: str | Path | None = None, content: bytes = b"") -> None:
        shown = ["" if one is None else os.path.relpath(one, folder) for one in (path, target)]
        events.append(Event(kind, shown[0], shown[1], content))

    real_sync, real_transaction = os.fsync, Ledger._transaction  # noqa: SLF001  its commits are what counts
    real_open, real_link = os.open, os.link

    def open_(path: str | Path, flags: int, *arguments: Any, **options: Any) -> int:
        descriptor = real_open(path, flags, *arguments, **options)
        if flags & (os.O_TRUNC | os.O_EXCL):
            note("write", path)
        return descriptor

    def link(path: str | Path, target: str | Path) -> None:
        real_link(path, target)
        note("link", path, target)

    def fsync(descriptor: int) -> None:
        real_sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        note("folder", path) if path.is_dir() else note("sync", path, content=path.read_bytes())

    @contextmanager
    def transaction(self: Ledger) -> Iterator[Any]:
        with real_transaction(self) as db:
            yield db
        (level,) = self._connection.execute("PRAGMA synchronous").fetchone()
        note("ledger" if level == EXTRA else UNDONE, FILE, content=(self.state_dir / FILE).read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "open", open_)
        patch.setattr(os, "link", link)
        patch.setattr(Ledger, "_transaction", transaction)
        for name, function in name_changes(note).items():
            patch.setattr(Path, name, function)
        yield events


def durable(folder: Path) -> Iterator[Event]:
    """Yield what makes all files of a folder, each durable."""
    for path in sorted(folder.rglob("*")):
        name = os.path.relpath(path, folder)
        if path.is_dir():
            yield Event("mkdir", name)
        else:
            yield Event("write", name)
            yield Event("sync", name, content=path.read_bytes())
        yield Event("folder", str(Path(name).parent))


def name_changes(note: Callable[..., None]) -> dict[str, Callable[..., Any]]:
    """Return methods of Path that do what they are called, and note it."""
    real = {name: getattr(Path, name) for name in ("open", "replace", "rename", "unlink", "mkdir")}

    def open_(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = real["open"](self, mode, *arguments, **options)
        if "w" in mode:
            note("write", self)
        return file

    def replace_(self: Path, target: Path) -> Path:
        done: Path = real["replace"](self, target)
        note("name", self, target)
        return done

    def unlink(self: Path, *, missing_ok: bool = False) -> None:
        real["unlink"](self, missing_ok=missing_ok)
        note("unlink", self)

    def mkdir(self: Path, mode: int = 0o777, *, parents: bool = False, exist_ok: bool = False) -> None:
        is_new = not self.exists()
        real["mkdir"](self, mode, parents=parents, exist_ok=exist_ok)
        if is_new:
            note("mkdir", self)

    return {"open": open_, "replace": replace_, "rename": replace_, "unlink": unlink, "mkdir": mkdir}


@contextmanager
def quickly() -> Iterator[None]:
    """Sync nothing: what recovers from a state is not interrupted itself."""
    real = Ledger._transaction  # noqa: SLF001

    def transaction(self: Ledger) -> Any:
        self._connection.execute("PRAGMA synchronous = OFF")
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(Ledger, "_transaction", transaction)
        yield


def make_plan(folder: Path, **output: Any) -> Plan:
    """Return the plan of a job of which every seventh row fails at first; `output` is set in it."""
    save(folder, [-1.0 - row if row % 7 == 3 else float(row) for row in range(ROWS)])
    os.utime(folder / "data.npy", (1, 1))
    return changed(plan_for(folder, ROWS, size=4, rows_per_part=12, max_failed=ROWS), output=output)


def stop_twice(folder: Path, plan: Plan) -> None:
    """Run the job and stop it within its first part, and again: what was kept is kept anew."""
    for rows in (4, 8):

        def run(feeds: Mapping[str, np.ndarray], last: int = rows) -> Mapping[str, np.ndarray]:
            if np.abs(feeds["x"]).max() > last:
                raise ProviderFailedError("the device is gone")
            return refuse_negative(feeds)

        execute_there(folder, plan, FakeRuntime(run), ends={Status.FAILED})


def run_all(folder: Path, plan: Plan) -> None:
    """Run the job, then its failed rows once more."""
    execute_there(folder, plan, FakeRuntime(refuse_negative))
    execute_there(folder, retrying(plan), FakeRuntime(double))


def failures_after(
    recorded: Sequence[Event],
    folder: Path,
    go_on: Callable[[Path], object],
    *,
    kills: bool,
    begin: int = 0,
    every: int = EVERY,
) -> Iterator[tuple[str, str]]:
    """Yield what went wrong when work went on from a state that power loss, or with `kills` only a kill, may leave.

    States count from the event `begin` on; with `every` 4, work goes on from each fourth state alone. `go_on` gets a
    folder in such a state, each once, and looks at the end.
    """
    disk, seen = Disk(), set()
    for number, event in enumerate(recorded):
        disk.apply(event)
        if number < begin:
            continue
        states = list(disk.states())
        for names, ledger in states[-1:] if kills else states:
            left_over = folder / "left"
            state = disk.leave(left_over, names, ledger)
            is_new = state not in seen
            seen.add(state)
            if is_new and len(seen) % every == 0:
                try:
                    go_on(left_over)
                except (Exception, AssertionError) as error:  # noqa: BLE001  whatever it is, it was not recovered from
                    yield f"after {number} ({event.kind} {event.path} {event.target}) with {sorted(names)}", repr(error)
            shutil.rmtree(left_over)
