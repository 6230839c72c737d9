"""What a part holds is added up block by block, from nothing or from what was kept of it."""

from typing import Any

import pytest

from ortdeploy.files.atomic import Written
from ortdeploy.ledger.records import Begun, Part
from ortdeploy.parts.part_writer import Totals, of_any_host
from ortdeploy.pipelines.state import State
from ortdeploy.results.rows import Block, FailedRow
from ortdeploy.streaming.member import Finished
from ortdeploy.streaming.row_runner import Outcome

KEPT = Part(number=3, start=40, rows=4, committed=2, failed=1, skipped=1, skipped_rows=(42,), file=".kept", bytes=9)


def finished(start: int, *, failed: int = 0, skipped: tuple[int, ...] = (), state: Any = None) -> Finished:
    """A block of eight rows."""
    bad = [FailedRow(row=start + one, source="", stage="run", code="bad", message="") for one in range(failed)]
    outcome = Outcome(columns={}, committed=8 - failed - len(skipped), failed=bad, skipped=skipped, state=state)
    return Finished(
        block=Block(start=start, count=8, rows=range(start, start + 8), columns={}, failed=[]),
        outcome=outcome,
        seconds=1.0,
    )


def test_counts_of_blocks_add_up() -> None:
    totals = Totals()
    for one in (finished(40, failed=1), finished(48, skipped=(50, 51))):
        totals.add(one)
    part = totals.part(3, "part-3.jsonl")
    assert (part.number, part.start, part.rows, part.end) == (3, 40, 16, 56)
    assert (part.committed, part.failed, part.skipped, part.skipped_rows) == (13, 1, 2, (50, 51))
    assert totals.new_rows == 16


def test_kept_rows_count_and_are_not_new() -> None:
    totals = Totals(Begun(part=KEPT, state=None))
    totals.add(finished(44, failed=2, skipped=(50,)))
    part = totals.part(3, "part-3.jsonl")
    assert (part.start, part.rows, part.committed, part.failed) == (40, 12, 7, 3)
    assert (part.skipped, part.skipped_rows, totals.new_rows) == (2, (42, 50), 8)


def test_a_part_has_a_file_only_if_one_was_written() -> None:
    totals = Totals()
    totals.add(finished(0))
    assert (totals.part(0, "a").file, totals.part(0, "a").bytes, totals.part(0, "a").sha256) == (None, 0, None)
    totals.written = Written(bytes=12, sha256="abc", mtime_ns=5)
    part = totals.part(0, "a")
    assert (part.file, part.bytes, part.sha256, part.mtime_ns) == ("a", 12, "abc", 5)


@pytest.mark.parametrize("last", [True, False])
def test_the_state_is_that_of_the_last_block_that_has_one(*, last: bool) -> None:
    first, second = State(values={}, key=("a",)), State(values={}, key=("b",))
    totals = Totals()
    for number, state in enumerate([first, second if last else None]):
        totals.add(finished(8 * number, state=state))
    assert totals.state is (second if last else first)


def test_the_origin_that_parts_carry_names_no_host() -> None:
    origin = {"device": {"host": "a", "cpu": "x"}, "versions": {"platform": "y", "numpy": "2"}, "model": "m"}
    assert of_any_host(origin) == {"device": {"cpu": "x"}, "versions": {"numpy": "2"}, "model": "m"}
    assert of_any_host({"model": "m"}) == {"device": {}, "versions": {}, "model": "m"}
