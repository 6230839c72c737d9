"""Finds the best numbers of sessions, callers and threads for a model with `threads: auto`.

Each way is opened and run on the first rows of the first job for some tenths of a second, as many batches at once as
the job would run; the good ones several times in turn, for machines are busy by the second. What is found is kept per
machine, model and batch.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count, cycle
from statistics import mean

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.feeds.sample import Feeds, first_runs
from ortdeploy.files.remembered import TuningCache, choice_key
from ortdeploy.plan.steps import OpenSession, Plan, PlannedThreadLayout, RunJob
from ortdeploy.sessions.opening import OpenedModel, OpenedSession
from ortdeploy.sessions.rows_first import rows_first
from ortdeploy.tensors.columns import OpRunners

PATIENCE_SECONDS = 10.0
_ROUNDS = 8
_SECONDS = 0.2  # for each layout and round at least
_HOPELESS = 0.8  # of the best so far
_WORTH = 1.02  # a layout that is tried later, and takes more memory, must be so much faster
_RUNS = 16  # that are fed different rows

OpenLayout = Callable[[PlannedThreadLayout], OpenedModel]


def choose_layout(
    plan: Plan,
    opening: OpenSession,
    job: RunJob,
    tuning_cache: TuningCache,
    open_layout: OpenLayout,
    ops: OpRunners | None = None,
) -> PlannedThreadLayout | None:
    """Return the layout that was found before, or that is found now; None if none of them runs.

    `ops` run the job's op steps. `open_layout` raises OrtdeployError where a layout cannot be opened. Raises
    OrtdeployError when the job's input cannot be read.
    """
    by_name = {layout.name: layout for layout in opening.thread_layouts}
    key = _key(opening, job)
    name = tuning_cache.find(key)
    if name not in by_name:
        rates = _measure(opening, job, first_runs(plan, job, _RUNS, ops or {}), open_layout)
        if not rates:
            return None
        name = _best(rates)
        shown = {one: round(rate, 1) for one, rate in rates.items()}
        log.info("threads.chosen", model=opening.model, layout=name, rows_per_second=shown)
        tuning_cache.keep(key, name)
    return by_name[name]


def _key(opening: OpenSession, job: RunJob) -> str:
    layouts = [[layout.name, dict(layout.options)] for layout in opening.thread_layouts]
    chains = [[[one.name, dict(one.options)] for one in session.providers] for session in opening.candidates]
    return choice_key("threads", opening.sha256, layouts, chains, job.batching.size)


def _measure(opening: OpenSession, job: RunJob, runs: Sequence[Feeds], open_layout: OpenLayout) -> dict[str, float]:
    """Return the mean rows per second of each layout, over as many rounds as the time allows.

    On a busy machine of two cores the mean of eight rounds found a layout within 5 % of the best 99 times of 100, that
    of four rounds 96 times, and the best of these four 92 times.
    """
    rates: dict[str, list[float]] = {}
    tried = list(opening.thread_layouts) if runs else []
    begin = time.perf_counter()
    for _ in range(_ROUNDS):
        for layout in tried:
            if time.perf_counter() - begin > PATIENCE_SECONDS:
                return _means(rates)
            with suppress(OrtdeployError, MemoryError):
                rate = _rows_per_second(open_layout(layout), job, runs)
                rates.setdefault(layout.name, []).append(rate)
        means = _means(rates)
        fastest = max(means.values(), default=0.0)
        tried = [layout for layout in tried if means.get(layout.name, 0.0) > fastest * _HOPELESS]
        if len(tried) <= 1:
            break
    return _means(rates)


def _means(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: mean(found) for name, found in rates.items()}


def _rows_per_second(opened: OpenedModel, job: RunJob, runs: Sequence[Feeds]) -> float:
    """Return how many rows all callers together run in a second. Raises OrtdeployError, MemoryError."""
    with ThreadPoolExecutor(len(opened.sessions)) as pool:
        _run_for(pool, opened.sessions, job, runs, 0.0)  # arenas and kernels are made ready
        return _run_for(pool, opened.sessions, job, runs, _SECONDS)


def _run_for(
    pool: ThreadPoolExecutor, callers: Sequence[OpenedSession], job: RunJob, runs: Sequence[Feeds], seconds: float
) -> float:
    """Let all callers begin together and run for so long, each at least once; return their rows per second."""
    start = threading.Barrier(len(callers))
    return sum(pool.map(partial(_call, start, job, runs, seconds), callers, count()))


def _call(
    start: threading.Barrier, job: RunJob, runs: Sequence[Feeds], seconds: float, caller: OpenedSession, number: int
) -> float:
    feeds = cycle([*runs[number % len(runs) :], *runs[: number % len(runs)]])
    session, rows = rows_first(caller.session, job), 0
    start.wait()
    begin = time.perf_counter()
    while not rows or time.perf_counter() - begin < seconds:
        fed = next(feeds)
        session.run(job.fetch, fed, job.adapters.always)
        rows += len(next(iter(fed.values()))) if job.batching.size else 1
    return rows / (time.perf_counter() - begin)


def _best(rates: Mapping[str, float]) -> str:
    """Return the first layout that is nearly as fast as the fastest."""
    fastest = max(rates.values())
    return next(name for name, rate in rates.items() if rate * _WORTH >= fastest)
