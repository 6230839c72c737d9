"""What is told of a job whose memory grows with its rows, or has exceeded its forecast."""

import pytest
from conftest import REPOSITORY

from ortdeploy.facts.memory import MeasuredMemory, MemoryForecast, MemoryPart, Way
from ortdeploy.process.leaks import GROWTH, LeakVerdict
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.reports.memory_told import EXCESS, excess, growth, larger, told
from ortdeploy.reports.statistics import sum_of_statistics

MIB = 1024 * 1024


def grown(monkeypatch: pytest.MonkeyPatch, limit: int | None, room: int | None, shapes: int = 1) -> str:
    watch = MemoryWatch(None, 1)
    watch.limit = limit
    watch.leak.growth = LeakVerdict(bytes_a_run=2048.0, confidence=1.0, grown=100 * MIB, runs=51_200)
    monkeypatch.setattr(MemoryWatch, "room", room)
    monkeypatch.setattr(type(watch.leak), "rows_per_second", 10.0)
    (text,) = told({GROWTH: growth(watch, shapes)})
    return text


def test_growth_is_told_with_its_pace_and_when_the_limit_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert grown(monkeypatch, 512 * MIB, 20 * MIB) == (
        "memory grows by 2.0 MiB per 1,000 rows: by 100 MiB in 51,200 rows of one run. At this pace, the 512 MiB that "
        "it may take would be used up after 10,240 more, in 17:04. ortdeploy check --leaks tells if it is the model "
        "that keeps it"
    )
    assert "the memory of this machine would be used up after 512,000 more" in grown(monkeypatch, None, 1000 * MIB)
    assert "pace" not in grown(monkeypatch, None, None), "the system does not tell"


def test_rows_of_ever_new_shapes_get_the_advice_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    text = grown(monkeypatch, None, 1000 * MIB, shapes=64)
    assert "in 64 or more shapes" in text
    assert "write memory: lean for the model, without shrink_after_run, or feed rows of one shape" in text


def test_nothing_is_told_of_a_job_that_does_not_grow() -> None:
    assert growth(MemoryWatch(None, 1), 64) == {}
    assert told({}) == told({GROWTH: {}, EXCESS: {}}) == ()


@pytest.mark.parametrize(
    ("measured", "unknown", "before", "taken", "said"),
    [
        (100, None, 60, 150, False),  # less than 32 MiB beyond 125
        (100, None, 60, 160, True),
        (100, None, 110, 160, False),  # of which 10 are others'
        (500, None, 490, 1000, False),  # as of another model, which is open too
        (500, None, 490, 1060, True),
        (None, None, 60, 230, False),  # an estimate may be wrong by half
        (None, None, 60, 290, True),
        (None, "activations", 60, 2000, False),  # nobody has forecast them
        (100, "activations", 60, 160, True),
    ],
)
def test_much_more_than_forecast_is_told(
    measured: int | None, unknown: str | None, before: int, taken: int, said: bool
) -> None:
    known = () if measured is None else (MeasuredMemory(way=Way(arena=True), size=measured * MIB, rows=1),)
    forecast = MemoryForecast(parts=(MemoryPart(what="process", size=100 * MIB),), unknown=unknown, measured=known)
    texts = told({EXCESS: excess(forecast, before * MIB, taken * MIB)})
    assert bool(texts) == said
    if said:
        own = taken - max(before - 100, 0)
        assert texts[0].startswith(f"it took {own} MiB of memory, and {measured or 100} MiB were forecast")


def test_of_shards_the_one_that_grows_most_is_told() -> None:
    slow, quick = {"bytes_per_1000_rows": 10.0, "rows": 5}, {"bytes_per_1000_rows": 20.0, "rows": 1}
    assert larger(slow, quick) == larger(quick, slow) == quick
    assert sum_of_statistics({GROWTH: slow}, {})[GROWTH] == slow


def test_the_page_shows_what_is_told() -> None:
    numbers = {"bytes_per_1000_rows": 822 * MIB, "grown_bytes": 285 * MIB, "rows": 390}
    left = {"rows_left": 23_850, "seconds_left": 26 * 60 + 52, "shapes": 64}
    page = (REPOSITORY / "docs/reference/limits.md").read_text(encoding="utf-8")
    shown = " ".join(page.partition("```text\n")[2].partition("```")[0].split())
    assert shown == f"job embed: {told({GROWTH: {**numbers, **left}})[0]}."
