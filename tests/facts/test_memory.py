"""Which way to run a job fits its memory, as it was measured or estimated."""

import pytest
from msgspec.structs import replace

from ortdeploy.facts.memory import MeasuredMemory, MemoryForecast, MemoryPart, Way

PARTS = (
    MemoryPart(what="process", size=60),
    MemoryPart(what="weights", size=20),
    MemoryPart(what="activations", size=80),
)
JOB = MemoryForecast(parts=PARTS, bound=200, key="k", callers=4)
FAST, SPARING, ALONE = Way(arena=True, callers=4), Way(arena=False, callers=4), Way(arena=False, callers=1)


def taken(way: Way, size: int, *, over: bool = False) -> MeasuredMemory:
    return MeasuredMemory(way=way, size=size, rows=8, over=over)


def after(*measured: MeasuredMemory, **changes: int | str | bool | None) -> MemoryForecast:
    return replace(JOB, measured=measured, **changes)


@pytest.mark.parametrize(
    ("forecast", "chosen", "unmeasured"),
    [
        (JOB, None, FAST),
        (after(taken(FAST, 160)), FAST, None),
        (after(taken(FAST, 180)), None, SPARING),  # it comes near
        (after(taken(FAST, 180), taken(SPARING, 180)), SPARING, None),
        (after(taken(FAST, 180), taken(SPARING, 190)), None, ALONE),
        (after(taken(FAST, 180), taken(SPARING, 190), taken(ALONE, 190)), ALONE, None),
        (after(taken(FAST, 200, over=True), taken(SPARING, 210)), None, ALONE),
        (after(taken(FAST, 200, over=True), taken(SPARING, 210), taken(ALONE, 90)), ALONE, None),
        (after(taken(FAST, 200, over=True), taken(SPARING, 210), taken(ALONE, 201)), None, None),
        (after(taken(FAST, 100, over=True)), None, FAST),  # under a smaller limit, which says nothing of this one
        (after(unknown="activations"), None, SPARING),
        (after(arena=True), None, FAST),
        (after(taken(FAST, 180), arena=True), FAST, None),
        (after(taken(Way(arena=True), 160), callers=None), Way(arena=True), None),
    ],
)  # fmt: skip
def test_ways_are_taken_in_order_until_one_fits(
    forecast: MemoryForecast, chosen: Way | None, unmeasured: Way | None
) -> None:
    assert (forecast.chosen and forecast.chosen.way) == chosen
    assert chosen is not None or forecast.unmeasured == unmeasured


def test_an_estimate_refuses_only_what_process_and_weights_exceed() -> None:
    assert not replace(JOB, bound=80).is_too_much
    assert replace(JOB, bound=79).is_too_much
    assert not replace(JOB, bound=None).is_too_much
    assert "takes at least" in replace(JOB, bound=79).excess
    measured = after(taken(FAST, 70), bound=79)
    assert not replace(measured, measured=(taken(SPARING, 70),)).is_too_much, "what was measured counts"


def test_a_job_is_too_much_when_no_way_fits_as_measured() -> None:
    job = after(taken(FAST, 260), taken(SPARING, 200, over=True), taken(ALONE, 230))
    assert job.is_too_much
    assert job.total == 200
    assert "takes more than" in job.excess
    assert not replace(job, bound=250).is_too_much
    assert (replace(job, bound=250).callers_at_once, JOB.callers_at_once) == (1, 4)


def test_the_arena_stays_where_the_job_does_not_come_near() -> None:
    assert [JOB.has_room_for_arena(limit, None) for limit in (320, 321)] == [False, True]
    measured = after(taken(FAST, 100))
    assert [measured.has_room_for_arena(limit, None) for limit in (117, 118)] == [False, True]
    assert not replace(measured, unknown="rows").has_room_for_arena(1000, None)
    layouts = replace(measured, thread_layouts={"wide": 200})
    assert [layouts.has_room_for_arena(limit, "wide") for limit in (400, 401)] == [False, False]
    assert replace(layouts, measured=()).has_room_for_arena(401, "wide")
    assert layouts.total_of("wide") == 200
