"""Who has made what of a plan, who is slow, and what is left: the same in the report, in status and in finish."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.files.shared_store import SharedStore
from ortdeploy.ledger.records import Part
from ortdeploy.parts.commit_log import CommitLog
from ortdeploy.parts.file_spans import Spans
from ortdeploy.parts.receipt import Receipt
from ortdeploy.parts.worker_progress import open_shares, shares_of
from ortdeploy.plan.part_table import PartTable
from ortdeploy.results.results import JobResult, Status
from ortdeploy.results.shares import Shares
from ortdeploy.views.json import render_status as json_status
from ortdeploy.views.status import render_status
from ortdeploy.views.status_model import JobStatus
from ortdeploy.views.text import render_results

TABLE = PartTable(first_number=2, first_row=16, end=60, rows_per_part=8)  # parts 2 to 7, the last of four rows


def receipt(number: int, *, host: str = "a", shard: str = "0/2", seconds: float = 1.0, failed: int = 0) -> Receipt:
    part = TABLE.part(number)
    rows = len(part.rows)
    made = Part(
        number=number,
        start=part.start,
        rows=rows,
        committed=rows - failed,
        failed=failed,
        skipped=0,
        file=None,
        bytes=0,
    )
    said: dict[str, Any] = {"origin": {}, "spans": Spans(), "ran": {}, "statistics": {"seconds": seconds}}
    return Receipt(part=made, staged=None, failed=(), worker={"host": host, "shard": shard, "run": "r"}, **said)


def shares(*receipts: Receipt, **unwritten: float) -> Shares:
    by_part = {one.part.number: one for one in receipts}
    left = [part.number for part in TABLE if part.number not in by_part]
    return shares_of(TABLE, by_part, left, {int(name[1:]): seconds for name, seconds in unwritten.items()})


def test_each_worker_has_its_parts_rows_failures_and_time() -> None:
    found = shares(receipt(2, failed=3), receipt(4, seconds=2.0), receipt(7, host="b", shard="1/2"))
    assert (found.parts, found.decided, found.rows, found.all_rows, found.failed) == (6, 3, 20, 44, 3)
    assert [(one.name, one.parts, one.rows, one.failed, one.seconds) for one in found.workers] == [
        ("a 0/2", 2, 16, 3, 3.0),
        ("b 1/2", 1, 4, 0, 1.0),
    ]
    assert found.left == ((3, 3), (5, 6))


def test_a_part_is_slow_beyond_four_medians_and_the_worst_come_first() -> None:
    usual = [receipt(number) for number in range(2, 6)]
    found = shares(*usual, receipt(6, seconds=4.1), receipt(7, seconds=9))
    assert [(one.part, one.seconds, one.worker) for one in found.slow] == [(7, 9.0, "a 0/2"), (6, 4.1, "a 0/2")]
    assert (found.slow[0].start, found.slow[0].end) == (56, 59)
    assert shares(*usual, receipt(6, seconds=4.0)).slow == ()


@pytest.mark.parametrize(
    ("median", "seconds", "slow"), [(1, 59, False), (1, 61, True), (20, 79, False), (20, 81, True)]
)
def test_a_part_that_nobody_writes_is_slow_after_a_minute_and_four_medians(
    median: float, seconds: float, *, slow: bool
) -> None:
    found = shares(receipt(2, seconds=median), p5=seconds)
    assert [(one.part, one.worker) for one in found.slow] == ([(5, None)] if slow else [])


def test_where_nothing_is_decided_there_is_no_median_and_nothing_is_divided() -> None:
    found = shares()
    assert (found.median, found.workers, found.slow, found.left) == (None, (), (), ((2, 7),))


def decide_some(place: SharedPlace) -> None:
    log = CommitLog(place, "ab" * 32, TABLE, suffix=".jsonl", digits=8)
    log.begin(known=False)
    for number, worker in ((2, "0/2"), (3, "1/2")):
        log.decide(TABLE.part(number), receipt(number, shard=worker, failed=number - 2))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    decide_some(SharedFolder(tmp_path))
    return tmp_path


def test_a_store_tells_the_same_as_a_folder(output: Path, store: Any) -> None:
    place = SharedStore("memory://out")
    decide_some(place)
    assert open_shares(place) == open_shares(SharedFolder(output))
    staged = f"/out/_parts/{'ab' * 32}/.part-6.{'0' * 32}"
    store.pipe_file(staged, b"uploaded, and then its worker was killed")
    store.store[staged].created = datetime.now(UTC) - timedelta(minutes=5)
    found = open_shares(place)
    assert found is not None
    assert [(one.part, one.worker, one.seconds >= 300) for one in found.slow] == [(6, None, True)]
    store.pipe_file(f"/out/_parts/{'ab' * 32}/closed.json", b"{}")
    assert open_shares(place) is None


def test_status_counts_decisions_and_leaves_out_what_it_cannot_read(output: Path) -> None:
    (folder,) = (path for path in (output / "_parts").iterdir() if path.is_dir())
    (folder / "part-00000004.json").write_text('{"part": ')
    staged = folder / f".part-6.{'0' * 32}"
    staged.write_bytes(b"")
    long_ago = time.time() - 300
    os.utime(staged, (long_ago, long_ago))
    found = open_shares(SharedFolder(output))
    assert found is not None
    assert (found.decided, found.left) == (2, ((4, 7),))
    (late,) = found.slow
    assert (late.part, late.worker, late.seconds >= 300) == (6, None, True)


def test_a_plan_that_is_closed_or_not_there_has_nothing_open(
    output: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder,) = (path for path in (output / "_parts").iterdir() if path.is_dir())
    (folder / "closed.json").write_text("{}")
    assert open_shares(SharedFolder(output)) is None
    assert open_shares(SharedFolder(tmp_path_factory.mktemp("none"))) is None


def test_a_damaged_table_is_left_to_finish(output: Path) -> None:
    (folder,) = (path for path in (output / "_parts").iterdir() if path.is_dir())
    (folder / "bound.json").write_text('{"parts": {"rows": 3}}')
    assert open_shares(SharedFolder(output)) is None


def test_text_names_workers_with_failures_first_then_slow_ones_and_says_how_many_more() -> None:
    found = shares(
        receipt(2, host="quick"), receipt(3, host="failing", failed=2), receipt(4, host="slow", seconds=9.0), p6=100.0
    )
    text = render_status([JobStatus(job="read", output="out", record=None, shares=found)])
    assert text.splitlines()[2:] == [
        "read: 3 of 6 parts decided: 24 of 44 rows, 2 failed",
        "read: 3 parts left: 5 to 7",
        "read: failing 0/2: 1 part, 8 rows, 2 failed, 1.00 s a part",
        "read: slow 0/2: 1 part, 8 rows, 9.00 s a part",
        "read: quick 0/2: 1 part, 8 rows, 1.00 s a part",
        "read: part 6 (rows 48 to 55): nothing was written for 100 s; the median is 1.00 s",
        "read: part 4 (rows 32 to 39) took 9.00 s on slow 0/2; the median is 1.00 s",
    ]
    told = json.loads(json_status([JobStatus(job="read", output="out", record=None, shares=found)]))
    assert told["jobs"][0]["shares"]["left"] == [[5, 7]]
    many = shares_of(
        PartTable(first_number=0, first_row=0, end=96, rows_per_part=8),
        {n: receipt(2 + n % 6, host=f"h{n}") for n in range(12)},
        [],
    )
    ended = JobResult(job="read", status=Status.DONE, output="out", shares=many)
    assert "read: and 4 more workers, with fewer failed rows and quicker\n" in render_results([ended], color=False)


def test_seconds_of_workers_are_told_in_microseconds() -> None:
    found = shares(receipt(2, seconds=0.1234567), receipt(3, seconds=0.0000004))
    assert [one.seconds for one in found.workers] == [0.123457]
