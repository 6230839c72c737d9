"""Blocks on their way: a few are always allowed, more only while they are small with their results."""

import threading
from collections.abc import Callable

import pytest

from ortdeploy.feeds.in_flight import LEAST, MOST, SMALL_BYTES, InFlight


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
    for count in range(2 * MOST):
        try:
            flight.wait()
        except WaitsError:
            return count
        flight.acquire(size_bytes)
    return 2 * MOST


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
