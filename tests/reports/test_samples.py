"""The course of a job: few samples however long it runs, and the first and last events."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from ortdeploy.reports import samples
from ortdeploy.reports.samples import Samples
from ortdeploy.reports.statistics import check_statistics


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a clock in seconds, in a list that a test may change."""
    now = [1000.0]
    monkeypatch.setattr(samples, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def run(course: Samples, clock: list[float], begin: float, end: float) -> int:
    """Finish a block of 7 rows every 10 ms; return how often a sample was taken."""
    taken, blocks = 0, round((end - begin) * 100)
    for block in range(blocks):
        clock[0] += 0.01
        if course.is_due():
            course.take(begin + block / 100, block * 7)
            taken += 1
    return taken


@pytest.mark.slow
def test_samples_are_few_however_long_a_job_runs(clock: list[float]) -> None:
    course = Samples({})
    taken = run(course, clock, 0.0, 2000.0)
    kept = course.plain()["samples"]
    assert 100 < len(kept) <= 240
    assert taken < 3000  # of 200,000 blocks
    assert kept[-1][0] > 1900
    gaps = [after[0] - before[0] for before, after in pairwise(kept)]
    assert max(gaps) < 5 * min(gaps)


def test_the_next_run_goes_on(clock: list[float]) -> None:
    first = Samples({})
    run(first, clock, 0.0, 300.0)
    first.note(300.0, "stopped")
    second = Samples(first.plain())
    run(second, clock, 300.0, 600.0)
    known = second.plain()
    assert len(known["samples"]) <= 240
    assert known["samples"][0][0] < 10
    assert known["samples"][-1][0] > 590
    assert known["events"] == [[300.0, "stopped"]]


def test_of_many_events_the_first_and_the_last_are_kept() -> None:
    course = Samples({})
    for number in range(1000):
        course.note(float(number), f"event {number}")
    events = course.plain()["events"]
    assert len(events) == 60
    assert [events[0][1], events[-1][1]] == ["event 0", "event 999"]


@pytest.mark.parametrize(
    "damage",
    [
        {"samples": [[1.0, "x", 3]]},
        {"samples": [[1.0, 2, "x"]]},
        {"events": [["x", "y"]]},
        {"events": [[1.0, 2]]},
        {"samples": {}},
    ],
)
def test_a_course_that_is_damaged_is_told(damage: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        check_statistics(damage)
