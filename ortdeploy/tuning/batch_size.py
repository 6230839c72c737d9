"""Finds the fastest batch size for `batch: {size: auto}`, on the job's own first rows in its first seconds.

What is found is kept per device, model and sessions, and a job that goes on keeps the size that it began with.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError
from ortdeploy.events import log
from ortdeploy.feeds.sample import first_feeds
from ortdeploy.files.tuning_cache import TuningCache, choice_key
from ortdeploy.plan.batching import SEARCHED
from ortdeploy.plan.plan_file import plan_digest
from ortdeploy.plan.selection import openings_of
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.memory import available_memory, resident_memory
from ortdeploy.providers.catalogue import COUNTED
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.bounded_runs import Trials
from ortdeploy.sessions.opening import OpenedModel, OpenedSession
from ortdeploy.sessions.runs import rows_first
from ortdeploy.tensors.columns import Array, OpRunners
from ortdeploy.tuning.better import first_of_the_fastest, is_better

PATIENCE_SECONDS = 3.0
_RUN_SECONDS = 0.05  # for each size at least, and three runs
_RUNS = 3
_SHARE_OF_MEMORY, _SHARE_OF_LIMIT = 0.25, 0.8


def choose_batch(
    plan: Plan,
    step: RunJob,
    opened: OpenedModel,
    begun_with: int | None,
    tuning_cache: TuningCache,
    *,
    may_measure: bool = True,
) -> RunJob:
    """Return the job with the batch size that it began with, that was found before, or that is found now.

    If it may not be measured, the size is the plan's. Raises HungMeasurementError if a trial hangs.
    """
    key = _key(plan, step, opened)
    size = begun_with or tuning_cache.find(key)
    if size not in SEARCHED:
        rates = _rates(plan, step, opened.sessions[0]) if may_measure else {}
        size = first_of_the_fastest(rates) if rates else step.batching.run_size
        log.info("batch.chosen", rows=size, rows_per_second={str(rows): round(rate) for rows, rate in rates.items()})
        if rates:
            tuning_cache.keep(key, size)
    return replace(step, batching=step.batching.resized(size))


def _key(plan: Plan, step: RunJob, opened: OpenedModel) -> str:
    """Return what a size holds for: this machine, the model's file and options, and its sessions."""
    models = [one.sha256 for one in openings_of(plan, step)]
    sessions = [[one.candidate.name, one.instance] for one in opened.sessions]
    return choice_key("batch", models, sessions, plan_digest(plan, step.job))


def _rates(plan: Plan, step: RunJob, opened: OpenedSession) -> dict[int, float]:
    """Return the rows per second by size. A run that takes too long ends the search."""
    trials = Trials(step.errors.run_timeout)

    def measure() -> dict[int, float]:
        with trials.bounded(rows_first(opened.session, step)) as session:
            return dict(_measure(plan, step, session, opened.ops, trials))

    return trials.watch(measure)


def _measure(plan: Plan, step: RunJob, session: Session, ops: OpRunners, trials: Trials) -> Iterator[tuple[int, float]]:
    """Yield the rows per second of each size, until more rows at once bring nothing, or take too much."""
    feeds = first_feeds(plan, step, SEARCHED[-1], ops)
    if not feeds:
        return
    rows = min(*map(len, feeds.values()), step.batching.most or SEARCHED[-1])
    adapters = step.adapters.always
    begin, before, room = time.perf_counter(), resident_memory() or 0, available_memory()
    best, worse = 0.0, 0
    for size in SEARCHED:
        if size > rows:
            return
        cut, trials.rows = {name: array[:size] for name, array in feeds.items()}, size
        try:
            rate = size / _seconds_of_a_run(session, step, cut, adapters)
        except (OutOfMemoryError, MemoryError, OrtdeployError):
            return
        yield size, rate
        worse = 0 if is_better(rate, best) else worse + 1
        best = max(best, rate)
        grown = (resident_memory() or 0) - before
        too_large = room is not None and grown > room * _SHARE_OF_MEMORY
        if step.limits.memory is not None:
            too_large = (resident_memory() or 0) > step.limits.memory * _SHARE_OF_LIMIT
        if worse > 1 or too_large or time.perf_counter() - begin > PATIENCE_SECONDS:
            return


def _seconds_of_a_run(session: Session, step: RunJob, feeds: Mapping[str, Array], adapters: tuple[str, ...]) -> float:
    """Return the shortest of some runs; the first does not count, arenas and kernels are made ready in it.

    Raises OrtdeployError if an array has more elements than kernels count, which crashes some and others get wrong.
    """
    _check_counts(feeds.values())
    _check_counts(session.run(step.fetch, feeds, adapters))
    shortest, begin, runs = float("inf"), time.perf_counter(), 0
    while runs < _RUNS or time.perf_counter() - begin < _RUN_SECONDS:
        before = time.perf_counter()
        session.run(step.fetch, feeds, adapters)
        shortest = min(shortest, time.perf_counter() - before)
        runs += 1
    return max(shortest, 1e-9)


def _check_counts(arrays: Iterable[Array]) -> None:
    if any(isinstance(array, np.ndarray) and array.size > COUNTED for array in arrays):
        raise OrtdeployError(f"a batch has more than {COUNTED:,} elements")
