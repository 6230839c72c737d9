"""What is told of a job whose memory grows with its rows, or has exceeded its forecast: numbers, and words for them."""

from collections.abc import Mapping
from typing import Any

from ortdeploy.durations import clock
from ortdeploy.facts.memory import ESTIMATED, MemoryForecast
from ortdeploy.process.leaks import GROWTH
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.units import format_size

EXCESS = "memory_excess"
"""The statistic that has the numbers of a job that has exceeded its forecast; those of growth are in `GROWTH`."""

MANY_SHAPES = 16
"""Shapes of rows that ONNX Runtime has to make room for."""

_MORE = 1.25
_SLACK = 32 * 1024 * 1024
"""What a job takes beyond its forecast, by share and in bytes, before it is told."""


def growth(memory: MemoryWatch, shapes: int) -> dict[str, float]:
    """Return the numbers of a job whose memory grows with its rows, which had this number of `shapes`; or none."""
    leak, room = memory.leak, memory.room
    found = leak.growth
    if found is None:
        return {}
    rows = None if room is None else room / found.bytes_a_run
    left = {} if rows is None else {"rows_left": int(rows), "seconds_left": round(rows / leak.rows_per_second)}
    limit = {} if memory.limit is None else {"limit_bytes": memory.limit}
    return {
        "bytes_per_1000_rows": round(found.bytes_a_run * 1000),
        "grown_bytes": found.grown,
        "rows": found.runs,
        **limit,
        **left,
        "shapes": shapes,
    }


def excess(forecast: MemoryForecast | None, before: int, taken: int) -> dict[str, float]:
    """Return how much a job has taken and was to take, if that is much less; an estimate may be wrong by half.

    What its process had `before` beside libraries and the job's weights, as for other models, is not the job's.
    """
    if forecast is None or (not forecast.measured and forecast.unknown is not None):
        return {}
    own = taken - max(before - forecast.least, 0)
    most = forecast.total if forecast.measured else forecast.total / ESTIMATED
    return {"taken_bytes": own, "forecast_bytes": forecast.total} if own > most * _MORE + _SLACK else {}


def larger(one: Mapping[str, float], other: Mapping[str, float]) -> Mapping[str, float]:
    """Return the worse of what two shards tell."""
    return max(one, other, key=lambda numbers: next(iter(numbers.values()), 0))


def told(statistics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the last run of a job tells of its memory, in sentences without the last stop."""
    found = (_growth_text(statistics.get(GROWTH)), _excess_text(statistics.get(EXCESS)))
    return tuple(text for text in found if text)


def _growth_text(numbers: Mapping[str, float] | None) -> str:
    if not numbers:
        return ""
    rate, grown = format_size(numbers["bytes_per_1000_rows"]), format_size(numbers["grown_bytes"])
    said = f"memory grows by {rate} per 1,000 rows: by {grown} in {numbers['rows']:,} rows of one run"
    if "rows_left" in numbers:
        what = "the memory of this machine"
        if "limit_bytes" in numbers:
            what = f"the {format_size(numbers['limit_bytes'])} that it may take"
        after = f"after {numbers['rows_left']:,} more, in {clock(numbers['seconds_left'])}"
        said += f". At this pace, {what} would be used up {after}"
    if numbers["shapes"] >= MANY_SHAPES:
        return (
            f"{said}. They came in {numbers['shapes']:,} or more shapes, and ONNX Runtime keeps memory for shapes: "
            "write memory: lean for the model, without shrink_after_run, or feed rows of one shape"
        )
    return f"{said}. ortdeploy check --leaks tells if it is the model that keeps it"


def _excess_text(numbers: Mapping[str, float] | None) -> str:
    if not numbers:
        return ""
    taken, forecast = format_size(numbers["taken_bytes"]), format_size(numbers["forecast_bytes"])
    return f"it took {taken} of memory, and {forecast} were forecast. limits: {{memory: …}} keeps it within a limit"
