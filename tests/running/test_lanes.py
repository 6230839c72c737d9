"""Lanes: sessions begin when those of the lane before them have run what they run, and no block is lost meanwhile."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from ortdeploy.feeds.prepared import Prepared
from ortdeploy.results.rows import Block
from ortdeploy.running import lanes
from ortdeploy.running.lanes import Lane
from ortdeploy.running.member import Member, Ticket


@pytest.fixture
def ticket() -> Ticket:
    return Ticket(
        Prepared(block=Block(start=0, count=1, rows=range(1), columns={"x": np.zeros(1)}, failed=[]), feeds=None), 0.0
    )


@pytest.fixture(autouse=True, name="clock")
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, which stand still."""
    now = [0.0]
    monkeypatch.setattr(lanes, "time", SimpleNamespace(perf_counter=lambda: now[-1]))
    return now


def lane() -> Lane:
    return Lane([Member(opened=None, rows=None)])  # type: ignore[arg-type]  # none runs


@dataclass
class WhileWaiting:
    """A condition on which something happens while it is waited for; it notes for what and how long."""

    happens: Callable[[], object]
    waits: list[tuple[bool, float]] = field(default_factory=list)
    is_there: bool = False

    def __enter__(self) -> None:
        """Let the only thread in."""

    def __exit__(self, *_: object) -> None:
        """Let it out."""

    def notify_all(self) -> None:
        """Wake nobody."""

    def wait_for(self, is_there: Callable[[], bool], seconds: float) -> bool:
        before = is_there()
        self.happens()
        self.waits.append((before, seconds))
        self.is_there = is_there()
        return self.is_there


@pytest.fixture
def running(ticket: Ticket) -> tuple[Lane, Iterator[Ticket]]:
    """A lane whose session runs a block, and the blocks of that session."""
    first = lane()
    first.put(ticket)
    blocks = first.tickets()
    next(blocks)
    return first, blocks


def test_a_session_waits_until_those_of_the_lane_before_are_through(
    running: tuple[Lane, Iterator[Ticket]], ticket: Ticket, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, blocks = running
    condition = WhileWaiting(lambda: list(blocks))
    monkeypatch.setattr(first, "_changed", condition)
    second = lane()
    second.take_over(first)
    first.close()
    second.put(ticket)
    second.put(ticket)
    mine = second.tickets()
    assert [next(mine), next(mine)] == [ticket, ticket]
    assert condition.waits == [(False, lanes.HAND_OVER)]  # not before the second block: nothing runs any more


def test_a_session_waits_once_and_not_before_each_block(
    running: tuple[Lane, Iterator[Ticket]], ticket: Ticket, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    condition = WhileWaiting(lambda: clock.append(clock.pop() + lanes.HAND_OVER))
    monkeypatch.setattr(running[0], "_changed", condition)
    second = lane()
    second.take_over(running[0])
    mine = second.tickets()
    for _ in range(3):
        second.put(ticket)
        assert next(mine) is ticket
    assert len(condition.waits) == 1


def test_blocks_that_wait_for_a_lane_which_goes_on_wait_no_longer(
    running: tuple[Lane, Iterator[Ticket]], ticket: Ticket, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = running[0], lane()
    condition = WhileWaiting(lambda: first.take_over(second))
    monkeypatch.setattr(first, "_changed", condition)
    second.take_over(first)
    second.put(ticket)
    assert next(second.tickets()) is ticket
    assert condition.is_there


def test_a_session_that_hangs_holds_up_no_other_lane_for_long(
    running: tuple[Lane, Iterator[Ticket]], ticket: Ticket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "HAND_OVER", 0.0)
    second = lane()
    second.take_over(running[0])
    second.put(ticket)
    assert next(second.tickets()) is ticket


def test_a_session_whose_block_failed_runs_no_more(ticket: Ticket) -> None:
    first, second = lane(), lane()
    first.put(ticket)
    blocks = first.tickets()
    next(blocks)
    del blocks
    second.take_over(first)
    second.put(ticket)
    assert next(second.tickets()) is ticket
    assert not first.is_busy


def test_blocks_that_wait_in_a_lane_go_to_the_one_that_takes_over(ticket: Ticket) -> None:
    first, second = lane(), lane()
    first.begin()
    first.put(ticket)
    second.take_over(first)
    assert next(second.tickets()) is ticket
    assert list(first.taken_back()) == []


def test_a_lane_that_is_closed_stays_so_when_its_blocks_are_taken(ticket: Ticket) -> None:
    closed = lane()
    closed.put(ticket)
    closed.close()
    assert list(closed.taken_back()) == [ticket]
    assert list(closed.tickets()) == []


def test_a_lane_that_goes_on_keeps_the_blocks_that_wait(ticket: Ticket) -> None:
    only = lane()
    only.begin()
    only.put(ticket)
    only.put(ticket)
    only.take_over(only)
    assert [next(only.tickets()), next(only.tickets())] == [ticket, ticket]
