"""How long ago parts were written, on boards whose clock is wrong until a network sets it."""

import math

import pytest

from ortdeploy.ledger.part_ages import ages_of
from ortdeploy.ledger.records import Part, Revision

NOW = 1_800_000_000.0
BOOT = 12.0
"""What a clock without a battery shows when a board has started."""


def part(number: int, written: float | None, *revised: float) -> Part:
    revisions = [
        Revision(revision=at, file=f"part-{number}.r{at}", bytes=1, rows=(), sha256="", mtime_ns=int(time * 1e9))
        for at, time in enumerate(revised, 1)
    ]
    return Part(
        number=number,
        start=number,
        rows=1,
        committed=1,
        failed=0,
        skipped=0,
        file=f"part-{number}",
        bytes=1,
        mtime_ns=None if written is None else int(written * 1e9),
        revisions=tuple(revisions),
    )


@pytest.mark.parametrize("wrong", [BOOT, 0.0, -5.0, NOW + 1e9])
def test_a_part_whose_time_is_wrong_is_as_old_as_the_one_after_it(wrong: float) -> None:
    parts = [part(0, NOW - 100), part(1, wrong), part(2, wrong), part(3, NOW - 10), part(4, wrong)]
    assert ages_of(parts, NOW) == [100, 10, 10, 10, -math.inf]


def test_a_clock_that_nobody_sets_still_counts_seconds() -> None:
    assert ages_of([part(0, BOOT), part(1, 100), part(2, NOW)], 112.0) == [100, 12, -math.inf]


def test_a_part_without_a_noted_time_stays() -> None:
    assert ages_of([part(0, None), part(1, NOW - 1)], NOW) == [-math.inf, 1]


def test_the_last_file_of_a_part_says_how_old_it_is() -> None:
    assert ages_of([part(0, NOW - 9, NOW - 3)], NOW) == [3]
