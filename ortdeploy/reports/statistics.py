"""Statistics of a job over all its runs, kept in the ledger: times by stage, rows by adapter, progress over time."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ortdeploy.durations import Histogram, sum_of
from ortdeploy.process.leaks import GROWTH
from ortdeploy.reports.memory_told import EXCESS, larger
from ortdeploy.reports.proven import check_doubt, check_proven, sum_of_proven

STAGES = ("read", "prepare", "run", "postprocess", "write", "commit")
"""The timed stages: runs are timed one by one, commits by part, the others by block."""


def _plus(one: float, other: float) -> float:
    return round(one + other, 6)


def _larger(one: int | None, other: int | None) -> int | None:
    return max((peak for peak in (one, other) if peak is not None), default=None)


def _by_name(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: round(one.get(name, 0) + other.get(name, 0), 3) for name in sorted({*one, *other})}


def _by_stage(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: sum_of([Histogram.from_plain(kept[name]) for kept in (one, other) if kept]).plain() for name in STAGES
    }


def _no_course(_one: Sequence[Any], _other: Sequence[Any]) -> list[Any]:
    """Return no samples: of runs that were at work at the same time, the times overlap."""
    return []


def _first(one: Any, other: Any) -> Any:
    """Return what all shards have alike: types of carried columns, the thread layout."""
    return one or other


_STATISTICS: Mapping[str, tuple[Any, Any, Callable[[Any, Any], Any]]] = {
    "seconds": (int | float, 0, _plus),
    "session_seconds": (int | float, 0, _plus),
    "stages": (dict, {}, _by_stage),
    "adapter_rows": (dict, {}, _by_name),
    "written": (dict, {}, _by_name),
    "retries": (int, 0, _plus),
    "batches_cut_anew": (int, 0, _plus),
    "batches_halved": (int, 0, _plus),
    "peak_memory_bytes": (int | None, None, _larger),
    "process": (dict, {}, _by_name),
    GROWTH: (dict, {}, larger),
    EXCESS: (dict, {}, larger),
    "timeline": (list, [], _no_course),
    "proven": (dict, {}, sum_of_proven),
    "samples": (list, [], _no_course),
    "events": (list, [], _no_course),
    "types": (dict, {}, _first),
    "layout": (str, "", _first),
    "expected": (dict, {}, _first),
}
"""The statistics of a job by name: the type that `plain` gives each, its value if nothing ran, its sum over shards."""


def sum_of_statistics(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two shards' statistics, both from `JobStatistics.plain`.

    Either may lack some: nothing ran yet, or an older ortdeploy did not measure them.
    """
    return {
        name: add(one.get(name, nothing), other.get(name, nothing))
        for name, (_, nothing, add) in _STATISTICS.items()
        if name in one or name in other
    }


def run_share(statistics: Mapping[str, Any]) -> float | None:
    """Return the share of their time in which the sessions ran: 1 if nothing else was ever waited for."""
    seconds = statistics.get("session_seconds")
    return min(statistics["stages"]["run"]["total"] / seconds, 1.0) if seconds else None


def check_statistics(kept: Mapping[str, Any]) -> None:
    """Raise ValueError, TypeError, LookupError or AttributeError if numbers have not the form that `plain` returns."""
    kinds = {name: kind for name, (kind, *_) in _STATISTICS.items()}
    for name, kind in kinds.items():
        if name in kept and not isinstance(kept[name], kind):
            raise ValueError(f"{name} of a job is {kept[name]!r}")
    check_proven(kept.get("proven", {}))
    if "doubt" in kept:
        check_doubt(kept["doubt"])
    if not kept.keys() <= {*kinds, "state", "doubt"} or (kept and set(kept["stages"]) != set(STAGES)):
        raise ValueError("what a job has measured is not what was written")
    histograms = [Histogram.from_plain(stage) for stage in kept.get("stages", {}).values()]
    numbers = [
        *(number for one in histograms for number in (one.count, one.total, one.cpu, *one.buckets.values())),
        *(edge for one in histograms for edge, _ in one.upper_edges()),
        *(
            number
            for name in ("adapter_rows", "written", "process", GROWTH, EXCESS)
            for number in kept.get(name, {}).values()
        ),
        *(number for point in kept.get("timeline", []) for number in (point[0], point[1])),
        *(number for one in kept.get("samples", []) for number in one[:2]),
        *(one[2] for one in kept.get("samples", []) if one[2] is not None),
        *(one[0] for one in kept.get("events", [])),
    ]
    if not all(isinstance(one[1], str) for one in kept.get("events", [])):
        raise ValueError("an event of a job has no name")
    for number in numbers:
        if type(number) not in {int, float} or not math.isfinite(number):
            raise ValueError(f"a number of a job is {number!r}")
