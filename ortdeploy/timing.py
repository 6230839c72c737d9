"""Percentiles of durations in constant memory."""

import math
from collections import Counter
from collections.abc import Iterable

_STEPS_PER_OCTAVE = 32  # a bucket is 2.2 % wide


class Histogram:
    """Counts durations in logarithmic buckets, so that ten million of them take as little room as ten."""

    def __init__(self) -> None:
        """Begin empty."""
        self.buckets: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[math.ceil(math.log2(max(seconds, 1e-9)) * _STEPS_PER_OCTAVE)] += 1
        self.count += 1
        self.total += seconds

    def include(self, other: "Histogram") -> None:
        """Count what another histogram has counted."""
        self.buckets.update(other.buckets)
        self.count += other.count
        self.total += other.total

    def percentile(self, share: float) -> float | None:
        """Return the upper edge of the bucket that holds the given share (0 to 1), or None when empty."""
        left = math.ceil(self.count * share)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return float(2 ** (bucket / _STEPS_PER_OCTAVE))
        return None


def sum_of(histograms: Iterable[Histogram]) -> Histogram:
    """Return a histogram of everything that several have counted."""
    result = Histogram()
    for histogram in histograms:
        result.include(histogram)
    return result
