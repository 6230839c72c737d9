"""An input file that is replaced while a job runs: no row of another state than the recorded one is committed."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.inbox import Inbox
from support.worlds import World

from ortdeploy.jobs import resume, shard_run
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import Part
from ortdeploy.results.results import JobResult, Status


def values(inbox: Inbox) -> list[float]:
    parts = sorted(inbox.out.glob("part-*"))
    return [json.loads(line)["y"][0] / 2 for part in parts for line in part.read_text().splitlines()]


@pytest.mark.parametrize("rows", [4, 2], ids=["of parts of its own", "that shares a part"])
@pytest.mark.parametrize("who", ["apply", "shard"])
def test_rows_of_a_file_that_was_replaced_before_it_was_read_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, rows: int
) -> None:
    """The file is as planned when the run begins, and another one when it is read."""
    world = World(Inbox(tmp_path).make(), random.Random(1))  # noqa: S311  moments, not secrets
    inbox = world.inbox
    inbox.put("a", [1, 2, 3, 4])
    inbox.put("b", [float(10 + row) for row in range(rows)])
    inbox.put("c", [20, 21, 22, 23])
    world.save_plan()
    module: Any = resume if who == "apply" else shard_run
    look, looks = module.check_inputs, list[str]()

    def replace_after(*arguments: Any, **more: Any) -> None:
        look(*arguments, **more)
        if not looks:
            inbox.put("b", [float(90 + row) for row in range(rows)])
        looks.append(who)

    monkeypatch.setattr(module, "check_inputs", replace_after)
    ended: JobResult | None = world.apply() if who == "apply" else world.shard(0, 1)
    assert ended is not None
    assert (ended.status, "b.npy is not what it was" in (ended.reason or "")) == (Status.FAILED, True)
    assert values(inbox) == [1, 2, 3, 4]
    if who == "apply":
        monkeypatch.undo()
        world.settle()
        inbox.check()


@pytest.mark.parametrize("becomes", ["gone", "another"])
def test_a_file_whose_rows_are_committed_may_go_or_change_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    """Whoever collects an inbox need not wait for the last part; the next run sees the change."""
    world = World(Inbox(tmp_path).make(), random.Random(1))  # noqa: S311  as above
    inbox = world.inbox
    inbox.put("a", [1, 2, 3, 4])
    inbox.put("b", [10, 11, 12, 13])
    commit, committed = Ledger.commit_part, list[int]()

    def then_changed(ledger: Ledger, output: str, part: Part, *arguments: Any, **more: Any) -> None:
        commit(ledger, output, part, *arguments, **more)
        if not committed:
            inbox.remove("a") if becomes == "gone" else inbox.put("a", [5, 6, 7, 8])
        committed.append(part.number)

    monkeypatch.setattr(Ledger, "commit_part", then_changed)
    ended = world.apply()
    assert ended is not None
    assert (ended.status, ended.reason) == (Status.DONE, None)
    assert values(inbox) == [1, 2, 3, 4, 10, 11, 12, 13]
    world.settle()
    inbox.check()
