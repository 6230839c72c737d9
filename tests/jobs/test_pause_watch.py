"""What makes a job pause, with clocks and sensors that tests turn."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ortdeploy.jobs.pause_watch import PauseWatch, Senses
from ortdeploy.plan.timing import Hours, JobTiming, PauseLimits
from ortdeploy.process.sensors import Battery, Temperature


class World:
    """What the senses of a watch see."""

    def __init__(self, **seen: Any) -> None:
        self.seconds = 0.0
        self.looks = 0
        self.seen: dict[str, Any] = {"temperature": None, "battery": None, "free": None, "clock": "12:00", **seen}

    def watch(self, timing: JobTiming, paused_for: str = "") -> PauseWatch:
        def temperature() -> Temperature | None:
            self.looks += 1
            return None if self.seen["temperature"] is None else Temperature(self.seen["temperature"], "cpu")

        senses = Senses(
            monotonic=lambda: self.seconds,
            now=lambda zone: (
                datetime.fromisoformat(f"2026-06-01T{self.seen['clock']}").replace(tzinfo=UTC).astimezone(zone)
            ),
            temperature=temperature,
            battery=lambda: self.seen["battery"],
            free_bytes=lambda _folder: self.seen["free"],
        )
        return PauseWatch(timing, Path("out"), paused_for, senses)


def of(**limits: Any) -> JobTiming:
    return JobTiming(pause=PauseLimits(**limits))


def test_a_job_without_timing_never_pauses() -> None:
    assert not World(temperature=500.0).watch(JobTiming())()


def test_until_counts_from_the_start() -> None:
    world = World()
    watch = world.watch(JobTiming(until=60))
    for seconds, paused in ((0.0, False), (59.0, False), (60.0, True), (61.0, True)):
        world.seconds = seconds
        assert watch() is paused
    assert watch.reason == "it has run for 60 s, as until: says"


def test_until_counts_from_the_start_in_an_earlier_process() -> None:
    world = World()
    world.seconds = 100.0
    watch = replace(world.watch(JobTiming(until=60)), began=50.0)
    for seconds, paused in ((100.0, False), (109.0, False), (110.0, True)):
        world.seconds = seconds
        assert watch() is paused


@pytest.mark.parametrize(
    ("clock", "hours", "runs"),
    [
        ("21:59", Hours(begin=1320, end=360), False),
        ("22:00", Hours(begin=1320, end=360), True),
        ("05:59", Hours(begin=1320, end=360), True),
        ("06:00", Hours(begin=1320, end=360), False),
        ("05:59", Hours(begin=360, end=1320), False),
        ("20:30", Hours(begin=1320, end=360, zone="Europe/Berlin"), True),  # 22:30 there, in summer
    ],
)
def test_hours(clock: str, hours: Hours, runs: bool) -> None:
    assert World(clock=clock).watch(JobTiming(hours=hours))() is not runs


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 1439))
def test_a_day_is_split_into_the_hours_and_the_others(begin: int, end: int, minute: int) -> None:
    if begin != end:
        assert Hours(begin=begin, end=end).hold(minute) is not Hours(begin=end, end=begin).hold(minute)


def test_heat_pauses_and_ends_five_degrees_below() -> None:
    assert not World(temperature=80.0).watch(of(temperature=80))()
    hot = World(temperature=80.5).watch(of(temperature=80))
    assert hot()
    assert hot.reason == "temperature 80 °C (cpu), it runs up to 80 °C"
    assert World(temperature=76.0).watch(of(temperature=80), hot.reason)()
    assert not World(temperature=75.0).watch(of(temperature=80), hot.reason)()
    assert not World(temperature=76.0).watch(of(temperature=80), "free disk 1 MiB, …")()


def test_a_battery_counts_while_it_is_discharged() -> None:
    assert not World(battery=Battery(5, discharging=False)).watch(of(battery=20))()
    low = World(battery=Battery(19, discharging=True)).watch(of(battery=20))
    assert low()
    assert World(battery=Battery(24, discharging=True)).watch(of(battery=20), low.reason or "")()
    assert not World(battery=Battery(25, discharging=True)).watch(of(battery=20), low.reason or "")()


def test_free_disk() -> None:
    assert World(free=99).watch(of(free_disk=100))()
    assert not World(free=100).watch(of(free_disk=100))()


def test_what_cannot_be_read_pauses_nothing() -> None:
    assert not World().watch(of(temperature=1, battery=100, free_disk=10**15))()


def test_sensors_are_read_once_a_second_and_a_pause_stays() -> None:
    world = World(temperature=20.0)
    watch = world.watch(of(temperature=80))
    for _ in range(100):
        assert not watch()
    assert world.looks == 1
    world.seconds, world.seen["temperature"] = 1.5, 90.0
    assert watch()
    world.seconds, world.seen["temperature"] = 3.0, 20.0
    assert watch()
