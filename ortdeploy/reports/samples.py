"""Samples of a job over time: rows and memory at a limited number of moments however long it runs, and events."""

import time
from collections.abc import Mapping
from typing import Any

from ortdeploy.process.memory import resident_memory

_MOST_SAMPLES = 240
_MOST_EVENTS = 60
_SOONEST = 0.1  # seconds between two samples of a short job; one takes some 50 microseconds

Sample = list[float | int | None]
"""Seconds that the job has run, in all its runs; rows that are done; the resident set in bytes, if it is known."""


class Samples:
    """Samples of a job over all its runs. If there are too many, every other one is dropped, and the interval grows."""

    def __init__(self, earlier: Mapping[str, Any]) -> None:
        self._samples: list[Sample] = [list(one) for one in earlier.get("samples", [])]
        self._events: list[list[Any]] = [list(one) for one in earlier.get("events", [])]
        self._between = max(_SOONEST, self._last() / _MOST_SAMPLES)
        self._due = 0.0
        self.highest = 0
        """The largest resident set of this run among its samples, in bytes."""

    def _last(self) -> float:
        return float(self._samples[-1][0] or 0) if self._samples else 0.0

    def is_due(self) -> bool:
        """Return whether the next sample is due. Called for every block."""
        return time.monotonic() >= self._due

    def take(self, seconds: float, rows: int) -> None:
        """Take a sample: `rows` are done after `seconds` of all runs together."""
        self._due = time.monotonic() + self._between
        resident = resident_memory()
        self.highest = max(self.highest, resident or 0)
        self._samples.append([round(seconds, 3), rows, resident])
        if len(self._samples) > _MOST_SAMPLES:
            self._samples = self._samples[1::2]
            self._between *= 2

    def note(self, seconds: float, event: str) -> None:
        """Note an event; of too many, the first ones and the last are kept."""
        self._events.append([round(seconds, 3), event])
        if len(self._events) > _MOST_EVENTS:
            del self._events[_MOST_EVENTS // 2]

    def plain(self) -> dict[str, Any]:
        """Return samples and events as JSON."""
        return {"samples": self._samples, "events": self._events}
