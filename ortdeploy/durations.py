"""Percentiles of durations in constant memory."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

GRACE = 5.0
"""Seconds in which a run that was asked to end may do so."""

LATE = 1.0
"""Seconds after its time at which a thread that watches has not merely waited for a processor."""

_STEPS_PER_OCTAVE = 32  # a bucket is 2.2 % wide
_LEAST = 1e-9  # what a clock counts by; it may stand still meanwhile


class Pace:
    """The speed of a job, reported at an interval in seconds; `first` rows were done when it began."""

    def __init__(self, total: int | None, first: int, seconds_between: float) -> None:
        self.total = total
        self._first = first
        self._between = seconds_between
        self._begin = self._last = time.monotonic()

    def told(self, done: int) -> tuple[float, int | None] | None:
        """Return rows per second and the seconds left, if those can be told; None while it is not yet time."""
        now = time.monotonic()
        if now - self._last < self._between:
            return None
        self._last = now
        rate = (done - self._first) / (now - self._begin)
        return rate, round((self.total - done) / rate) if self.total is not None and rate else None


def clock(seconds: float) -> str:
    """Return a duration as a clock shows it: `0:07`, `12:34`, `1:02:03`."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(text: str) -> str:
    """Return a moment in ISO 8601 to the second, for people: `2026-11-23 20:45:15 UTC`."""
    from datetime import datetime  # noqa: PLC0415  jobs that run measure durations alone

    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S %Z}"


class Histogram:
    """Counts durations in logarithmic buckets, so that ten million of them take as little room as ten.

    `cpu` are the processor seconds that were used in them, if the caller gives them.
    """

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0
        self.cpu = 0.0

    def add(self, seconds: float, cpu: float = 0.0) -> None:
        """Count one duration."""
        self.cpu += cpu
        self.buckets[_bucket(seconds)] += 1
        self.count += 1
        self.total += seconds

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Histogram":
        """Return what `plain` has made JSON of."""
        histogram = cls()
        histogram.buckets.update({int(bucket): number for bucket, number in plain["buckets"].items()})
        histogram.count, histogram.total = plain["count"], plain["total"]
        histogram.cpu = plain.get("cpu", 0.0)
        return histogram

    def plain(self) -> dict[str, Any]:
        """Return the counts as JSON has them."""
        buckets = {str(bucket): number for bucket, number in self.sorted_buckets()}
        return {"count": self.count, "total": round(self.total, 6), "cpu": round(self.cpu, 6), "buckets": buckets}

    def upper_edges(self) -> list[tuple[float, int]]:
        """Return the upper edge of each bucket, in seconds, with what it counts."""
        return [(float(2 ** (bucket / _STEPS_PER_OCTAVE)), count) for bucket, count in self.sorted_buckets()]

    def add_all(self, durations: Sequence[float]) -> None:
        """Count many durations."""
        self.buckets.update(map(_bucket, durations))
        self.count += len(durations)
        self.total += math.fsum(durations)

    def include(self, other: "Histogram") -> None:
        """Count what another histogram has counted."""
        self.buckets.update(dict(other.sorted_buckets()))
        self.count += other.count
        self.total += other.total
        self.cpu += other.cpu

    def sorted_buckets(self) -> list[tuple[int, int]]:
        """Return the buckets as they are at this moment; a thread may be counting."""
        return sorted(list(self.buckets.items()))  # noqa: C414  the list is made at once, sorting takes its time

    def percentile(self, share: float) -> float | None:
        """Return the upper edge of the bucket that holds the given share (0 to 1), or None when empty."""
        left = math.ceil(self.count * share)
        for bucket, number in self.sorted_buckets():
            left -= number
            if left <= 0:
                return float(2 ** (bucket / _STEPS_PER_OCTAVE))
        return None


def _bucket(seconds: float) -> int:
    return math.ceil(math.log2(seconds or _LEAST) * _STEPS_PER_OCTAVE)


@contextmanager
def timed(histogram: Histogram) -> Iterator[None]:
    """Count how long the block takes, and what its thread uses of a processor."""
    begin, cpu = time.perf_counter(), time.thread_time()
    try:
        yield
    finally:
        histogram.add(time.perf_counter() - begin, time.thread_time() - cpu)


def sum_of(histograms: Iterable[Histogram]) -> Histogram:
    """Return a histogram of everything that several have counted."""
    result = Histogram()
    for histogram in histograms:
        result.include(histogram)
    return result
