"""Power loss: what a job does to its files is recorded, and every state that the disk may be left in is recovered from.

The disk promises what POSIX does, on every file system, and no more. The bytes of a file are there when the file was
synced. A name that is new, replaced or gone is so when its folder was synced, and before that may be either, each name
for itself; a folder is a name in the one above it. So output and state may lie on different file systems: nothing that
is synced on one makes anything on the other durable, nor anything else on its own.

SQLite's commits are taken as they are documented: with synchronous=EXTRA they are whole and durable when they return.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from support.fakes import FakeRuntime, double
from support.jobs import execute, plan_for, save
from support.power_loss import UNDONE, Event, failures_after, make_plan, quickly, recording, run_all, stop_twice

from ortdeploy.results.results import Status

_TOKEN = re.compile(r"\.[0-9a-f]{8}(?=\.partial$)")


def left(folder: Path) -> dict[str, bytes]:
    out = folder / "work/out"
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != "_run.json"}


def failures(
    recorded: Sequence[Event], folder: Path, expected: dict[str, bytes], *, first: bool = False, every: int = 1
) -> list[tuple[str, str]]:
    """Return the states from which the next runs do not come to the same end; the first alone where that is enough."""

    def go_on(left_over: Path) -> None:
        with quickly():
            run_all(left_over, make_plan(left_over / "work"))
        assert left(left_over) == expected

    found = failures_after(recorded, folder, go_on, kills=False, every=every)
    return [*islice(found, 1 if first else None)]


@pytest.fixture(name="recorded", scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Event], dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("recorded")
    for place in ("work", "state"):
        (folder / place).mkdir()
    plan = make_plan(folder / "work")
    with recording(folder) as events:
        stop_twice(folder, plan)
        run_all(folder, plan)
    return list(events), left(folder)


@pytest.mark.process
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 11])
def test_every_state_that_power_loss_may_leave_is_recovered_from(
    recorded: tuple[list[Event], dict[str, bytes]], tmp_path: Path, every: int
) -> None:
    events, expected = recorded
    kinds = [event.kind for event in events]
    assert kinds.count("ledger") > 6
    assert kinds.count("sync") > 6
    assert kinds.count("mkdir") == 4
    kept = [event.target for event in events if event.kind == "name" and event.target.endswith(".begun")]
    assert kept == [f"work/out/.part-00000000.jsonl.{rows}.begun" for rows in (4, 8)]
    assert failures(events, tmp_path, expected, every=every) == []


@pytest.mark.parametrize(
    ("forgotten", "what"),
    [
        pytest.param("sync", "the bytes of a part", marks=pytest.mark.slow),
        pytest.param("work/out", "the name of a part", marks=pytest.mark.slow),
        ("ledger", "that a commit lasts"),
        ("state/deep", "the name of the state directory"),
    ],
)  # fmt: skip
def test_what_is_not_synced_would_be_noticed_here(
    recorded: tuple[list[Event], dict[str, bytes]], tmp_path: Path, forgotten: str, what: str
) -> None:
    """The same recording without its syncs: as if the code had left them out, some states are not recovered from."""
    events, expected = recorded
    if forgotten == "ledger":
        without = [replace(e, kind=UNDONE) if e.kind == "ledger" else e for e in events]
    elif forgotten == "sync":
        without = [event for event in events if event.kind != "sync"]
    else:
        without = [event for event in events if (event.kind, event.path) != ("folder", forgotten)]
    assert failures(without, tmp_path, expected, first=True), what


def test_a_job_of_one_part_waits_for_the_disk_only_where_something_rests_on_it(tmp_path: Path) -> None:
    save(tmp_path, range(4))
    plan = plan_for(tmp_path, 4)
    with recording(tmp_path) as events:
        assert execute(tmp_path, plan, FakeRuntime(double)).status == Status.DONE
    names = [(one.kind, _TOKEN.sub("", Path(one.path).name)) for one in events]
    waits = [(kind, name) for kind, name in names if kind in {"sync", "folder", "ledger"}]
    begin, rest = waits[: waits.index(("ledger", "state.db")) + 1], waits[waits.index(("ledger", "state.db")) + 1 :]
    assert begin == [("folder", ""), ("folder", ""), ("ledger", "state.db")]
    assert rest == [
        ("sync", "._output.json.partial"), ("folder", "out"),
        ("sync", ".part-00000000.jsonl.partial"), ("folder", "out"), ("ledger", "state.db"),
        ("sync", "._failed.jsonl.partial"), ("sync", "._run.json.partial"), ("folder", "out"), ("ledger", "state.db"),
    ]  # fmt: skip
