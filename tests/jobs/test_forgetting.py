"""`keep`: what is done and carried away is forgotten, and nothing that is there runs again for it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.carriers import CARRIERS, delivered, rows_of
from support.inbox import Inbox
from support.logs import capture_logs
from support.power_loss import STATE, quickly

from ortdeploy.jobs.job_report import NOT_BEGUN, recorded_result
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.records import Forgotten
from ortdeploy.plan.selection import run_jobs
from ortdeploy.results.results import Status
from ortdeploy.views.status_model import JobStatus


def sizes(inbox: Inbox) -> dict[str, int]:
    """How many rows each table of the ledger has."""
    with closing(sqlite3.connect(inbox.at / STATE / FILE)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: db.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in names}  # noqa: S608  a test


def day(inbox: Inbox, number: int, *, away: bool = True, gone: bool = True) -> None:
    """A file arrives and is run; then it is taken away, and what was made of it is."""
    name = f"day-{number}"
    inbox.put(name, [number, -1, number])
    inbox.apply()
    if away:
        CARRIERS["parts"](inbox.out, inbox.at / f"away/{number}")
    if gone:
        inbox.remove(name)


def five_days(inbox: Inbox) -> None:
    """Five days, of which the second one's file stays."""
    for number in range(5):
        day(inbox, number, gone=number != 1)


COURSE = 4 * 4096
"""Bytes that the samples and events of a job take when there are as many as are kept."""


@pytest.mark.slow
def test_days_leave_a_ledger_of_a_few(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, removable=True, keep=0.0).make()
    with quickly():
        for number in range(8):
            day(inbox, number)
        before, size = sizes(inbox), (tmp_path / STATE / FILE).stat().st_size
        for number in range(8, 20):
            day(inbox, number)
    assert sizes(inbox) == before
    assert (tmp_path / STATE / FILE).stat().st_size <= size + COURSE
    record = inbox.record()
    assert (record.rows, record.committed, record.failed_in_parts) == (60, 40, 20)
    assert [part.number for part in record.parts] == [19]
    report = json.loads((inbox.out / "_run.json").read_text())
    assert report["rows"] == {"input": 60, "committed": 40, "failed": 20, "skipped": 0}
    assert report["forgotten"]["parts"] == 19
    letters = [json.loads(line)["row"] for line in (inbox.out / "_failed.jsonl").read_text().splitlines()]
    assert letters == [58]


@pytest.mark.slow
def test_what_is_there_is_never_forgotten(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, removable=True, keep=0.0).make()
    with quickly():
        five_days(inbox)
        assert inbox.record().forgotten.parts == 1
        inbox.put("day-1", [1, -1, 2])
        assert inbox.apply() is Status.DONE
        inbox.remove("day-1")
        day(inbox, 5, away=False)
        day(inbox, 6)
        day(inbox, 7)
    assert inbox.record().forgotten.parts == 7
    inbox.check(*tmp_path.glob("away/*"))


def test_parts_behind_one_that_is_kept_wait_for_it_and_the_log_says_so(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, removable=True, keep=0.0).make()
    with quickly():
        five_days(inbox)
        with capture_logs() as events:
            day(inbox, 5)
        assert inbox.record().forgotten.parts == 1
        inbox.remove("day-1")
        day(inbox, 6)
        day(inbox, 7)
    record = inbox.record()
    (step,) = run_jobs(inbox.plan())
    told = JobStatus(job="run", output="out", record=record), recorded_result(step, record, NOT_BEGUN)
    assert (record.committed, *(one.failed for one in told)) == (16, 8, 8), "each count has what is forgotten"
    held = [event for event in events if event["event"] == "parts.held_up"]
    assert [(one["parts"], one["part"], one["input"]) for one in held] == [(3, 1, "inbox/day-1.npy")]
    assert inbox.record().forgotten.parts == 7
    inbox.check(*tmp_path.glob("away/*"))


def test_files_on_a_device_that_is_not_mounted_are_remembered(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, removable=True, keep=0.0).make()
    stick, device = tmp_path / "work/inbox/stick", tmp_path / "device"
    with quickly():
        inbox.put("stick/a", [5, 6])
        inbox.apply()
        CARRIERS["parts"](inbox.out, tmp_path / "away/stick")
        stick.rename(device)
        stick.mkdir()
        for number in range(2):
            day(inbox, number)
        assert inbox.record().forgotten.parts == 0
        stick.rmdir()
        device.rename(stick)
        assert inbox.apply() is Status.NOTHING_TO_DO
        inbox.remove("stick/a")
        (stick / "another").touch()
        for number in range(2, 4):
            day(inbox, number)
    assert inbox.record().forgotten.parts == 4


@pytest.mark.slow
def test_a_part_that_was_written_lately_is_kept(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, removable=True, keep=3600.0).make()
    with quickly():
        for number in range(4):
            day(inbox, number)
    assert inbox.record().forgotten == Forgotten()


@pytest.mark.slow
def test_without_a_word_everything_is_remembered(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, removable=True).make()
    with quickly():
        for number in range(4):
            day(inbox, number)
    assert inbox.record().forgotten == Forgotten()
    assert len(inbox.record().parts) == 4


@pytest.mark.slow
def test_what_stands_in_the_folder_stays_bounded_by_compaction(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path).make()
    with quickly():
        for number in range(120):
            day(inbox, number, away=False)
            if number % 25 == 24:
                inbox.compact(rows_per_part=200)
        inbox.compact(rows_per_part=200)
    record = inbox.record()
    assert (record.rows, record.committed, record.failed_in_parts) == (360, 240, 120)
    assert len(record.parts) <= 4
    assert len((inbox.out / "_run.json").read_bytes()) < 50_000  # with at most 240 samples and 60 events
    assert sizes(inbox)["provenance"] == 1
    assert len(list(inbox.out.glob("part-*"))) == len(record.parts)
    assert list(rows_of(delivered(inbox.out))) == [row for row in range(360) if row % 3 != 1]
