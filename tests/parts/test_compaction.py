"""Small parts are put together: in every format, through every interruption, every row is there once, as it was."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.carriers import CARRIERS, Carrier, delivered, rows_of
from support.fakes import FakeRuntime, double, refuse_negative
from support.inbox import Inbox, failures_of
from support.jobs import READ, execute, failed, plan_for, report, retrying, save, written_as
from support.power_loss import EVERY, Event, quickly, recording

from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.verification import PartState, verify_parts
from ortdeploy.parts.compaction import CompactionTarget
from ortdeploy.results.results import Status
from ortdeploy.sinks.catalogue import SINKS


def compact(folder: Path, kind: str, rows_per_part: int) -> tuple[int, int]:
    with open_ledger(folder / ".ortdeploy") as ledger:
        small = CompactionTarget(
            ledger=ledger,
            output=ledger.key(folder / "out"),
            folder=folder / "out",
            shown="out",
            format=kind,
            rows_per_part=rows_per_part,
            removable=False,
            exploded=False,
            has_row=True,
        )
        return small.compact()


@pytest.mark.parametrize("kind", READ)
def test_parts_of_every_format_become_one(tmp_path: Path, kind: str) -> None:
    save(tmp_path, [-1.0 if row in {3, 9} else row for row in range(22)])
    plan = written_as(plan_for(tmp_path, 22, max_failed=9), kind)
    execute(tmp_path, plan, FakeRuntime(refuse_negative))
    assert compact(tmp_path, kind, 20) == (3, 1)
    (part,) = sorted((tmp_path / "out").glob("part-*"))
    assert part.name == f"part-00000002.r1{SINKS[kind].SUFFIX}"
    assert READ[kind](part) == [row for row in range(22) if row not in {3, 9}]
    assert [letter["row"] for letter in failed(tmp_path)] == [3, 9]
    assert [one["file"] for one in report(tmp_path)["parts"]] == [part.name]
    assert compact(tmp_path, kind, 20) == (1, 1)


@pytest.mark.slow
def test_failed_rows_find_the_part_that_their_own_one_is_in(tmp_path: Path) -> None:
    save(tmp_path, [-1.0 if row in {3, 9} else row for row in range(22)])
    plan = plan_for(tmp_path, 22, max_failed=9)
    execute(tmp_path, plan, FakeRuntime(refuse_negative))
    assert compact(tmp_path, "jsonl", 20) == (3, 1)
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == 22
    assert compact(tmp_path, "jsonl", 22) == (1, 1)
    assert sorted(rows_of(delivered(tmp_path / "out"))) == list(range(22))
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.NOTHING_TO_DO


def test_single_columns_can_be_put_together(tmp_path: Path) -> None:
    parts = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for path, array in zip(parts, (np.arange(3), np.arange(3, 7)), strict=True):
        np.save(path, array)
    with (tmp_path / "both.npy").open("wb") as file:
        SINKS["npy"].merge(parts, range(7), file)
    assert np.load(tmp_path / "both.npy").tolist() == list(range(7))


def test_the_lines_are_those_that_were_there(tmp_path: Path) -> None:
    save(tmp_path, range(20))
    execute(tmp_path, plan_for(tmp_path, 20), FakeRuntime(refuse_negative))
    before = b"".join(path.read_bytes() for path in sorted((tmp_path / "out").glob("part-*")))
    assert compact(tmp_path, "jsonl", 16) == (3, 2)
    assert [path.name for path in sorted((tmp_path / "out").glob("part-*"))] == [
        "part-00000001.r1.jsonl", "part-00000002.jsonl",
    ]  # fmt: skip
    assert b"".join(path.read_bytes() for path in sorted((tmp_path / "out").glob("part-*"))) == before
    assert compact(tmp_path, "jsonl", 16) == (2, 2)
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        key = ledger.key(tmp_path / "out")
        (deployment,) = {record.deployment for record in ledger.outputs()}
    found = list(verify_parts(tmp_path / ".ortdeploy", key, (deployment, "run"), tmp_path / "out"))
    assert [one.state for one in found] == [PartState.AS_WRITTEN] * 2


def fill(inbox: Inbox) -> None:
    """Parts of one and two rows, some written again, one of which some rows count no more."""
    for number, name in enumerate("abcdefgh"):
        inbox.put(name, [number, -1][: 1 + number % 2])
        inbox.apply()
    inbox.put("b", [11, 12])
    inbox.put("d", [13])
    inbox.apply()


def go_on(inbox: Inbox, carrier: Carrier, *, more: bool) -> None:
    """Carry away what is there, put the rest together and run a new file, or do nothing; look at what is left."""
    away = inbox.at / "away"
    carrier(inbox.out, away / "1")
    with quickly():
        if more:
            inbox.compact()
            inbox.put("i", [91, 92])
        inbox.apply()
        inbox.out.mkdir(exist_ok=True)
        inbox.check(away)
        assert rows_of(delivered(inbox.out, away))


@pytest.fixture(name="recorded", scope="module", params=[False, True], ids=["in place", "removable"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Inbox, list[Event], int]:
    inbox = Inbox(tmp_path_factory.mktemp("compacted"), removable=request.param).make()
    with recording(inbox.at) as events:
        fill(inbox)
        begin = len(events)
        before, after = inbox.compact()
        assert before > after
    inbox.check()
    return inbox, list(events), begin


@pytest.mark.quick("removable-nothing to do-parts-5")
@pytest.mark.process
@pytest.mark.parametrize("every", [EVERY, 5])
@pytest.mark.parametrize("name", ["nobody", "parts", "the folder"])
@pytest.mark.parametrize("more", [True, False], ids=["more to do", "nothing to do"])
def test_killed_at_every_step_every_row_is_there_once(
    recorded: tuple[Inbox, list[Event], int], tmp_path: Path, name: str, more: bool, every: int
) -> None:
    if name == "nobody" or recorded[0].removable:
        continued = partial(go_on, carrier=CARRIERS[name], more=more)
        assert list(failures_of(*recorded, tmp_path, continued, kills=True, every=every)) == []


@pytest.mark.slow
def test_after_power_loss_at_every_step_every_row_is_there_once(
    recorded: tuple[Inbox, list[Event], int], tmp_path: Path
) -> None:
    continued = partial(go_on, carrier=CARRIERS["nobody"], more=True)
    assert list(failures_of(*recorded, tmp_path, continued, kills=False)) == []


@pytest.mark.slow
def test_parts_that_were_carried_away_stay_as_they_are(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, removable=True).make()
    with quickly():
        for number in range(6):
            inbox.put(f"{number}", [number])
            inbox.apply()
        (inbox.out / "part-00000002.jsonl").rename(tmp_path / "part-00000002.jsonl")
        assert inbox.compact() == (6, 3)
        assert sorted(path.name for path in inbox.out.glob("part-*")) == [
            "part-00000001.r1.jsonl", "part-00000005.r1.jsonl",
        ]  # fmt: skip
        inbox.put("7", [7])
        inbox.apply()
    assert sorted(rows_of(delivered(inbox.out))) == [0, 1, 3, 4, 5, 6]
    assert [part.number for part in inbox.record().parts] == [1, 2, 5, 6]
    numbers = [json.loads(line)["row"] for line in (inbox.out / "part-00000006.jsonl").read_text().splitlines()]
    assert numbers == [6]
