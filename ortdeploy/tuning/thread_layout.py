"""Finds the best numbers of sessions, callers and threads for a job whose model says `threads: auto`.

Each way is opened and run on the first rows of the job for some tenths of a second, as many batches at once as
the job would run; the good ones several times in turn, for machines are busy by the second. What is found is kept per
machine, model and batch.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count, cycle
from statistics import mean

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.feeds.sample import Feeds, first_runs
from ortdeploy.files.tuning_cache import TuningCache, choice_key
from ortdeploy.plan.steps import OpenSession, Plan, PlannedThreadLayout, RunJob
from ortdeploy.sessions.bounded_runs import Trials
from ortdeploy.sessions.opening import OpenedModel, OpenedSession
from ortdeploy.sessions.runs import rows_first
from ortdeploy.tensors.columns import OpRunners
from ortdeploy.tuning.better import first_of_the_fastest

PATIENCE_SECONDS = 10.0
_ROUNDS = 8
_SECONDS = 0.2  # for each layout and round at least
_HOPELESS = 0.8  # of the best so far
_RUNS = 16  # that are fed different rows

OpenLayout = Callable[[PlannedThreadLayout], OpenedModel]


def choose_layout(
    plan: Plan,
    opening: OpenSession,
    job: RunJob,
    tuning_cache: TuningCache,
    open_layout: OpenLayout,
    ops: OpRunners | None = None,
    *,
    may_measure: bool = True,
) -> PlannedThreadLayout | None:
    """Return the layout that was found before, or that is found now if it may be; None if none of them runs.

    `ops` run the job's op steps. `open_layout` raises OrtdeployError where a layout cannot be opened. Raises
    OrtdeployError when the job's input cannot be read, and HungMeasurementError if a trial hangs.
    """
    by_name = {layout.name: layout for layout in opening.thread_layouts}
    key = layout_key("threads", opening, job, opening.thread_layouts)
    name = tuning_cache.find(key)
    if name not in by_name:
        rates = _rates(opening, job, first_runs(plan, job, _RUNS, ops or {}), open_layout) if may_measure else {}
        if not rates:
            return None
        name = first_of_the_fastest(rates)
        shown = {one: round(rate, 1) for one, rate in rates.items()}
        log.info("threads.chosen", model=opening.model, layout=name, rows_per_second=shown)
        tuning_cache.keep(key, name)
    return by_name[name]


def layout_key(what: str, opening: OpenSession, job: RunJob, layouts: Sequence[PlannedThreadLayout]) -> str:
    """Return a key for the best of some layouts: on this machine, for this model, its providers and the job's batch."""
    named = [[layout.name, dict(layout.options)] for layout in layouts]
    chains = [[[one.name, dict(one.options)] for one in session.providers] for session in opening.candidates]
    return choice_key(what, opening.sha256, named, chains, job.batching.size)


def _rates(opening: OpenSession, job: RunJob, runs: Sequence[Feeds], open_layout: OpenLayout) -> dict[str, float]:
    """Return the mean rows per second by layout. A layout of which a run takes too long is left out."""
    trials = Trials(job.errors.run_timeout)
    trials.rows = sum(_rows(job, fed) for fed in runs)
    return trials.watch(lambda: _measure(opening, job, runs, open_layout, trials))


def _rows(job: RunJob, fed: Feeds) -> int:
    return len(next(iter(fed.values()))) if job.batching.size else 1


def _measure(
    opening: OpenSession, job: RunJob, runs: Sequence[Feeds], open_layout: OpenLayout, trials: Trials
) -> dict[str, float]:
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
                rate = _rows_per_second(open_layout(layout), job, runs, trials)
                rates.setdefault(layout.name, []).append(rate)
        means = _means(rates)
        fastest = max(means.values(), default=0.0)
        tried = [layout for layout in tried if means.get(layout.name, 0.0) > fastest * _HOPELESS]
        if len(tried) <= 1:
            break
    return _means(rates)


def _means(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: mean(found) for name, found in rates.items()}


def _rows_per_second(opened: OpenedModel, job: RunJob, runs: Sequence[Feeds], trials: Trials) -> float:
    """Return how many rows all callers together run in a second. Raises OrtdeployError, MemoryError."""
    with ThreadPoolExecutor(len(opened.sessions)) as pool:
        start = threading.Barrier(len(opened.sessions))
        for seconds in (0.0, _SECONDS):  # at first, arenas and kernels are made ready
            feeds = (cycle([*runs[at % len(runs) :], *runs[: at % len(runs)]]) for at in count())
            rate = sum(pool.map(partial(_call, start, job, trials, seconds), opened.sessions, feeds))
    return rate


def _call(
    start: threading.Barrier, job: RunJob, trials: Trials, seconds: float, caller: OpenedSession, feeds: Iterator[Feeds]
) -> float:
    """Begin with the other callers and run for `seconds`, once at least; return the rows per second."""
    rows = 0
    with trials.bounded(rows_first(caller.session, job)) as session:
        start.wait()
        begin = time.perf_counter()
        while not rows or time.perf_counter() - begin < seconds:
            fed = next(feeds)
            session.run(job.fetch, fed, job.adapters.always)
            rows += _rows(job, fed)
    return rows / (time.perf_counter() - begin)
