"""What a timer leaves that finds one new file each time: what must grow is one row a part and a file, and nothing else."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.effort import effort
from support.inbox import Inbox
from support.power_loss import STATE

from ortdeploy.files.names import REPORT
from ortdeploy.ledger.damage import FILE

APPLIES = [pytest.param(12, id="quick"), pytest.param(effort(240, 600), marks=pytest.mark.slow, id="weeks")]
ROWS = 2
PAGES = 16 * 4096
"""Bytes that the ledger may take at once: one page for each table and index that has none to spare."""
POINTS = 240
"""Points of the timeline in a report."""


def table_rows(inbox: Inbox) -> Counter[str]:
    """Return the number of rows of each table of the ledger."""
    with closing(sqlite3.connect(inbox.at / STATE / FILE)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts = {name: db.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in tables}  # noqa: S608
    return Counter({name: count for name, count in counts.items() if count})


def file_names(inbox: Inbox) -> set[str]:
    """Return the files of the state and output folders but for parts, which are counted by the ledger."""
    folders = (inbox.at / STATE, inbox.out)
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(inbox.at)) for path in files if not path.name.startswith("part-")}


def report(inbox: Inbox) -> dict[str, Any]:
    """Return the report without the job's course, which may grow to so many points."""
    known: dict[str, Any] = json.loads((inbox.out / REPORT).read_text(encoding="utf-8"))
    for name in ("timeline", "samples", "events"):
        assert len(known.pop(name)) <= POINTS
    return known


def size(path: Path) -> int:
    return path.stat().st_size


def reported_size(inbox: Inbox) -> int:
    return len(json.dumps(report(inbox), indent=2))


def arrive(inbox: Inbox, number: int) -> None:
    inbox.put(f"file-{number:06}", [float(number)] * ROWS)
    inbox.apply()


@pytest.mark.slow
@pytest.mark.parametrize("applies", APPLIES)
def test_an_outbox_that_is_emptied_stays_as_small_as_it_was(tmp_path: Path, applies: int) -> None:
    inbox = Inbox(tmp_path, removable=True, keep=1e-9).make()
    seen = []
    for number in range(applies):
        arrive(inbox, number)
        for part in inbox.out.glob("part-*"):
            part.unlink()
        inbox.remove(f"file-{number:06}")
        if number + 1 in {applies // 2, applies}:
            seen.append((table_rows(inbox), file_names(inbox), size(inbox.at / STATE / FILE), len(str(report(inbox)))))
    (rows, names, ledger, reported), after = seen
    assert after[:2] == (rows, names)
    assert after[2] < ledger + PAGES  # what was measured has a timeline, which fills up
    assert abs(after[3] - reported) < 1000  # digits, and buckets of times that had not been seen
    assert rows == dict.fromkeys(
        ("outputs", "parts", "inputs", "contents", "spans", "provenance", "deployments", "forgotten"), 1
    )
    assert inbox.record().forgotten.parts == applies - 1


@pytest.mark.slow
@pytest.mark.parametrize("applies", APPLIES)
def test_an_output_that_stays_takes_one_row_a_part_and_a_file(tmp_path: Path, applies: int) -> None:
    inbox = Inbox(tmp_path).make()
    seen = []
    for number in range(applies):
        arrive(inbox, number)
        if number + 1 in {applies // 2, applies}:
            seen.append((table_rows(inbox), file_names(inbox), size(inbox.at / STATE / FILE), reported_size(inbox)))
    (rows, names, ledger, reported), (rows_after, names_after, ledger_after, reported_after) = seen
    more = applies - applies // 2
    assert max(one.pop("contents") for one in (rows, rows_after)) < 200  # they are packed together, now and then
    assert rows_after - rows == dict.fromkeys(("parts", "inputs", "spans"), more)
    assert names_after == names
    assert ledger_after - ledger < 600 * more + PAGES
    assert reported_after - reported < 700 * more
    inbox.compact(rows_per_part=ROWS * applies)
    arrive(inbox, applies)
    inbox.check()
    rows_at_last = table_rows(inbox)
    assert rows_at_last.pop("contents") < 200
    assert rows_at_last == {**rows_after, "parts": 2, **dict.fromkeys(("inputs", "spans"), applies + 1)}
    assert len(list(inbox.out.glob("part-*"))) == 2
    assert len(report(inbox)["parts"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("applies", APPLIES)
def test_applies_with_nothing_to_do_leave_nothing(tmp_path: Path, applies: int) -> None:
    inbox = Inbox(tmp_path).make()
    arrive(inbox, 0)
    inbox.apply()
    before = table_rows(inbox), file_names(inbox), size(inbox.at / STATE / FILE), len(str(report(inbox)))
    for _ in range(applies):
        inbox.apply()
    assert (table_rows(inbox), file_names(inbox), size(inbox.at / STATE / FILE)) == before[:3]
    assert abs(len(str(report(inbox))) - before[3]) < 100
