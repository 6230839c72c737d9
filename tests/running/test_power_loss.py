"""Power loss: what a job does to its files is recorded, and every state that the disk may be left in is recovered from.

A journalling file system promises little: bytes that were not synced may be missing though the file has its name, and a
new name, or a name that is gone, may be as before until the folder is synced. SQLite's commits are taken as it gives
them with synchronous=FULL: whole and durable when they return (dataplane measurements: power cuts lost none).
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.fakes import FakeRuntime, double, refuse_negative
from support.jobs import execute, plan_for, retrying, save

from ortdeploy.ledger.ledger import FILE, Ledger
from ortdeploy.plan.steps import Plan

ROWS = 60


@dataclass(frozen=True)
class Event:
    """Something that was done to a file: `write` (not synced yet), `sync`, `name`, `unlink`, `folder`, `ledger`."""

    kind: str
    path: str
    target: str = ""
    content: bytes = b""


@dataclass
class Disk:
    """What may be on the disk: contents by file, and the names in the folders, now and as last synced."""

    root: Path
    synced: dict[str, bytes] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    synced_names: dict[str, str] = field(default_factory=dict)
    ledger: bytes = b""

    def apply(self, event: Event) -> None:
        """Files are known by the name that they had first; names point to them."""
        if event.kind == "write":
            self.names[event.path] = f"{event.path}#{len(self.synced)}"
            self.synced[self.names[event.path]] = b""
        elif event.kind == "sync":
            self.synced[self.names[event.path]] = event.content
        elif event.kind == "name":
            self.names[event.target] = self.names.pop(event.path)
        elif event.kind == "unlink":
            self.names.pop(event.path, None)
        elif event.kind == "ledger":
            self.ledger = event.content
        else:
            inside = {name: file for name, file in self.names.items() if str(Path(name).parent) == event.path}
            others = {name: file for name, file in self.synced_names.items() if str(Path(name).parent) != event.path}
            self.synced_names = others | inside

    def leave(self, folder: Path, names: dict[str, str]) -> None:
        """Put what is on the disk into a folder."""
        (folder / "out").mkdir(parents=True)
        (folder / ".ortdeploy").mkdir()
        for name, file in names.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(self.synced[file])
        if self.ledger:
            (folder / ".ortdeploy" / FILE).write_bytes(self.ledger)


@contextmanager
def recording(folder: Path) -> Iterator[list[Event]]:
    """Record what is done to the files of a job's folder."""
    events: list[Event] = []

    def shown(path: str | Path) -> str:
        return os.path.relpath(path, folder)

    real_sync, real_open = os.fsync, Path.open
    real_replace, real_unlink = Path.replace, Path.unlink
    real_transaction = Ledger._transaction  # noqa: SLF001  its commits are what counts

    def fsync(descriptor: int) -> None:
        real_sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        kind = "folder" if path.is_dir() else "sync"
        events.append(Event(kind, shown(path), content=b"" if path.is_dir() else path.read_bytes()))

    def open_(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = real_open(self, mode, *arguments, **options)
        if "w" in mode:
            events.append(Event("write", shown(self)))
        return file

    def replace(self: Path, target: Path) -> Path:
        done = real_replace(self, target)
        events.append(Event("name", shown(self), shown(target)))
        return done

    def unlink(self: Path, *, missing_ok: bool = False) -> None:
        real_unlink(self, missing_ok=missing_ok)
        events.append(Event("unlink", shown(self)))

    @contextmanager
    def transaction(self: Ledger) -> Iterator[Any]:
        with real_transaction(self) as db:
            yield db
        events.append(Event("ledger", FILE, content=(self.state_dir / FILE).read_bytes()))

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", fsync)
    for name, new in (("open", open_), ("replace", replace), ("unlink", unlink)):
        patch.setattr(Path, name, new)
    patch.setattr(Ledger, "_transaction", transaction)
    try:
        yield events
    finally:
        patch.undo()


def values() -> list[float]:
    return [-1.0 - row if row % 7 == 3 else float(row) for row in range(ROWS)]


def make_plan(folder: Path) -> Plan:
    save(folder, values())
    os.utime(folder / "data.npy", (1, 1))
    return plan_for(folder, ROWS, size=4, rows_per_part=20, max_failed=ROWS)


def run_all(folder: Path, plan: Plan) -> None:
    """Run the job, then its failed rows once more."""
    execute(folder, plan, FakeRuntime(refuse_negative))
    execute(folder, retrying(plan), FakeRuntime(double))


def left(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir()) if path.name != "_run.json"}


def states(events: Sequence[Event], root: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield every state that the power may leave: after each event, with new names kept and with new names undone."""
    disk = Disk(root)
    for number, event in enumerate(events):
        disk.apply(event)
        for kind, names in (("names kept", disk.names), ("names undone", disk.synced_names)):
            yield f"after {number} ({event.kind} {event.path}), {kind}", lambda to, n=names: disk.leave(to, n)  # type: ignore[misc]


def failures(recorded: Sequence[Event], folder: Path, expected: dict[str, bytes]) -> list[str]:
    """Return the states from which the next runs do not come to the same end."""
    wrong = []
    for state, leave in states(recorded, folder):
        left_over = folder / "left"
        leave(left_over)
        plan = make_plan(left_over)
        try:
            run_all(left_over, plan)
            run_all(left_over, plan)
            if left(left_over) != expected:
                wrong.append(state)
        except Exception as error:  # noqa: BLE001  whatever it is, the state was not recovered from
            wrong.append(f"{state}: {error!r}")
        shutil.rmtree(left_over)
    return wrong


@pytest.fixture(name="recorded", scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Event], dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("recorded")
    plan = make_plan(folder)
    with recording(folder) as events:
        run_all(folder, plan)
    return list(events), left(folder)


def test_every_state_that_power_loss_may_leave_is_recovered_from(
    recorded: tuple[list[Event], dict[str, bytes]], tmp_path: Path
) -> None:
    events, expected = recorded
    kinds = [event.kind for event in events]
    assert kinds.count("ledger") > 6
    assert kinds.count("sync") > 6
    assert failures(events, tmp_path, expected) == []


@pytest.mark.parametrize(
    ("forgotten", "what"),
    [("sync", "the bytes of a part"), ("folder", "the name of a part")],
)
def test_what_is_not_synced_would_be_noticed_here(
    recorded: tuple[list[Event], dict[str, bytes]], tmp_path: Path, forgotten: str, what: str
) -> None:
    """The same recording without its syncs: as if the code had left them out, some states are not recovered from."""
    events, expected = recorded
    without = [event for event in events if event.kind != forgotten]
    assert failures(without, tmp_path, expected), what
