"""Blocks on their way: a few are always allowed, more only while they are small with their results."""

import threading
from collections.abc import Callable

import pytest

from ortdeploy.feeds.in_flight import LARGE_BYTES, LEAST, MOST, SMALL_BYTES, InFlight, on_their_way


class WaitsError(Exception):
    """There is no room for another block."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def now_or_never(_: threading.Condition, predicate: Callable[[], bool]) -> None:
        if not predicate():
            raise WaitsError

    monkeypatch.setattr(threading.Condition, "wait_for", now_or_never)


def allowed(flight: InFlight, size_bytes: int) -> int:
    """Return how many blocks of a size get in."""
    for count in range(50):
        try:
            flight.wait()
        except WaitsError:
            return count
        flight.acquire(size_bytes)
    return 50


@pytest.mark.parametrize(
    ("size_bytes", "result_bytes", "blocks"),
    [
        (1, 1, MOST),
        (SMALL_BYTES, 1, LEAST + 1),
        (1, SMALL_BYTES, LEAST + 1),  # each of them will have results as large
        (SMALL_BYTES // 8, SMALL_BYTES // 8, 4),
        (1, None, LEAST + 1),  # nothing is known of their results yet
    ],
)
def test_blocks_are_small_with_their_results(size_bytes: int, result_bytes: int | None, blocks: int) -> None:
    flight = InFlight(1)
    if result_bytes is not None:
        flight.learn(result_bytes)
    assert allowed(flight, size_bytes) == blocks
    flight.release(size_bytes)
    assert allowed(flight, size_bytes) == 1
    flight.close()
    assert not flight.wait()


@pytest.mark.parametrize(
    ("size_bytes", "blocks"),
    [(LARGE_BYTES // 64, 33), (LARGE_BYTES // 16 // 5 * 4, 21), (LARGE_BYTES, 18)],
    ids=["one that waits for each session", "by their bytes", "one that waits for all"],
)
def test_blocks_that_wait_for_many_sessions_are_bounded_by_their_bytes(size_bytes: int, blocks: int) -> None:
    assert allowed(InFlight(16), size_bytes) == blocks
    assert blocks <= on_their_way(16, 1, size_bytes) <= blocks + 1
