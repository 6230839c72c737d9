"""Remembers what jobs took of memory, under the key of their forecast, and tells which are to be measured first."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.facts.memory import ESTIMATED, MeasuredMemory, MemoryForecast, Way
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.memory import available_memory, memory_of_the_group, peak_memory
from ortdeploy.process.memory_limit import NEAR
from ortdeploy.state import memo

_KIND = "memory"
_MORE = 1.02
"""Peaks that differ by less are the same."""


def memory_bound(step: RunJob) -> int | None:
    """Return the bytes that a job may take, by its limit or by what is free; None: it needs much less than that."""
    forecast, group, limit = step.limits.forecast, memory_of_the_group(), step.limits.memory
    if limit is not None:
        return min(limit, group or limit)
    free = available_memory()
    room = min((size for size in (group, free and int(free * NEAR)) if size is not None), default=None)
    return None if room is None or forecast is None or forecast.total < room * ESTIMATED else room


def needs_measuring(step: RunJob) -> bool:
    """Return whether a job may take more than there is, and nothing that was measured says that it does not."""
    bound, forecast = memory_bound(step), step.limits.forecast
    return bound is not None and forecast is not None and replace(forecast, bound=bound).chosen is None


def note_own_peak(plan: Plan, step: RunJob, state_dir: Path) -> None:
    """Remember the peak of this process as what a job took that has run well, if no other ran in it before."""
    forecast, peak, group = step.limits.forecast, peak_memory(), memory_of_the_group()
    if forecast is None or not forecast.key or peak is None or step is not run_jobs(plan)[0]:
        return
    limit = min((size for size in (step.limits.memory, group) if size is not None), default=None)
    arena = forecast.arena
    if arena is None:
        arena = limit is None or forecast.has_room_for_arena(limit, None)
    taken = MeasuredMemory(
        way=Way(arena=arena, callers=forecast.callers_at_once),
        size=peak if limit is None else min(peak, limit),
        rows=step.input.rows or 0,
    )
    known = next((one.size for one in forecast.measured if one.way == taken.way and not one.over), None)
    grown = known is None or taken.size > known * _MORE
    shrunk = known is not None and taken.size * _MORE < known and forecast.unknown is None
    if grown or shrunk:
        note_memory(state_dir, forecast.key, taken)


def recall_memory(state_dir: Path, forecast: MemoryForecast) -> tuple[tuple[MeasuredMemory, ...], int | None]:
    """Return what is remembered of a job: what it took, and the batch that fits its bound if its own does not."""
    known = _known(state_dir, forecast.key)
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        fitting = known.get("fitting", {}).get(str(forecast.bound))
        return decode(tuple[MeasuredMemory, ...], known.get("measured", [])), fitting
    return (), None


def note_memory(state_dir: Path, key: str, taken: MeasuredMemory) -> None:
    """Remember what a job took in one way; what was measured before in the same way is forgotten."""
    known = _known(state_dir, key)
    way = encode(taken.way)
    others = [one for one in known.get("measured", []) if one.get("way") != way]
    memo.put(state_dir, _KIND, key, {**known, "measured": [*others, encode(taken)]})


def note_fitting(state_dir: Path, key: str, bound: int, batch: int) -> None:
    """Remember the batch of a job that fits a bound."""
    known = _known(state_dir, key)
    memo.put(state_dir, _KIND, key, {**known, "fitting": {str(bound): batch}})


def _known(state_dir: Path, key: str) -> Mapping[str, Any]:
    known = memo.get(state_dir, _KIND, key) if key else None
    return known if isinstance(known, dict) else {}
