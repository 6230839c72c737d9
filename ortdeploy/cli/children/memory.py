"""Measures what jobs take of memory before they run, where that may be more than there is.

The first rows of a job run in a fork that is held to its limit, with results in a scratch folder. What they took is
remembered, so each model, batch and number of callers is measured once.
"""

import os
import signal
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.cli.children.apply import execute
from ortdeploy.cli.children.endings import told_to_the_parent
from ortdeploy.events import log
from ortdeploy.facts.memory import WEIGHTS_PART, MeasuredMemory, MemoryForecast, Way
from ortdeploy.files.scratch import scratch_folder
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.plan.memory_notes import memory_bound, needs_measuring, note_fitting, note_memory
from ortdeploy.plan.selection import openings_of
from ortdeploy.plan.steps import Plan, RunJob, Step
from ortdeploy.planning.tryout import Measuring
from ortdeploy.process.child import Answer, how_it_ended
from ortdeploy.process.fork import ask_fork, can_fork
from ortdeploy.process.memory import available_memory, mapped_memory, peak_memory
from ortdeploy.process.memory_limit import NEAR
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.providers.catalogue import CPU
from ortdeploy.results.results import Status
from ortdeploy.units import format_size
from ortdeploy.views.progress import Silent

_SECONDS = 120.0
"""Seconds after which a job begins without having been measured."""

_OF_FREE = 1 / 3
"""The share of the free memory above which weights are not loaded for a measurement alone."""

_STATE = ".state"

_MARGIN = 0.95
"""The share of the bound that a batch for advice may take."""


def with_measured_memory(
    plan: Plan, state_dir: Path, stopped: Callable[[], bool] = lambda: False, *, always: bool = False
) -> tuple[Plan, dict[str, str]]:
    """Return a plan with what its jobs take, measured where that may be too much, and why some of them cannot run.

    `always`: each job is measured, whatever room there is.
    """
    steps: list[Step] = []
    refused: dict[str, str] = {}
    for step in plan.steps:
        if not isinstance(step, RunJob) or stopped() or not (always or needs_measuring(step)):
            steps.append(step)
            continue
        why_not = _why_not(plan, step)
        if why_not is not None:
            if always:
                log.warning("job.not_measured", job=step.job, reason=why_not)
            steps.append(step)
            continue
        job = _Job(plan=plan, step=step, state_dir=state_dir, bound=memory_bound(step), stopped=stopped)
        forecast = job.measured()
        steps.append(replace(step, limits=replace(step.limits, forecast=forecast)))
        if forecast.unmeasured is None and forecast.is_too_much:
            refused[step.job] = _refusal(step, forecast)
    return replace(plan, steps=tuple(steps)), refused


def _why_not(plan: Plan, step: RunJob) -> str | None:
    """Return why a job's first rows are not run beforehand; None if they are."""
    forecast = step.limits.forecast
    if forecast is None or not forecast.key:
        return "what it takes is not remembered here"
    if step.retry or step.input.upstream is not None:
        return "its rows are known when it begins, and not before"
    if not can_fork():
        return "rows can be measured on Linux, from the main thread"
    openings = openings_of(plan, step)
    first = [one for opening in openings for one in opening.candidates[: None if opening.use == "all" else 1]]
    if any(one.providers[0].name != CPU for one in first):
        return "its provider chain does not begin with the CPU"
    weights = sum(part.size for part in forecast.parts if part.what == WEIGHTS_PART)
    free = available_memory()
    if free is not None and weights > free * _OF_FREE:
        return f"its weights take {format_size(weights)}, over a third of the free memory"
    return None


def _refusal(step: RunJob, forecast: MemoryForecast) -> str:
    """Say why a job cannot run."""
    bound = format_size(forecast.bound or 0)
    whose = f"its limit is {bound}" if forecast.bound == step.limits.memory else f"there are {bound} for it"
    if forecast.fitting is not None:
        advice = f"batch: {{size: {forecast.fitting}}} fits"
    else:
        advice = "no smaller batch is known to fit: open fewer sessions, take a smaller model, or raise the limit"
    return f"over-memory-limit: it {forecast.excess}, and {whose}; {advice}"


class _Job(Struct, frozen=True, kw_only=True):
    """One job to measure, within a bound in bytes if there is one."""

    plan: Plan
    step: RunJob
    state_dir: Path
    bound: int | None
    stopped: Callable[[], bool]

    def measured(self) -> MemoryForecast:
        """Return the job's forecast, with all ways measured until one fits."""
        if self.step.limits.forecast is None:
            raise AssertionError("only jobs with a forecast are measured")
        forecast = replace(self.step.limits.forecast, bound=self.bound)
        taken: list[MeasuredMemory] = []
        while forecast.chosen is None and (way := forecast.unmeasured) is not None:
            found = self._measure(forecast, way)
            if isinstance(found, str):
                if not self.stopped():
                    log.warning("job.not_measured", job=self.step.job, reason=found)
                return forecast
            taken.append(found)
            more = 0 if found.over else forecast.rest
            forecast = forecast.with_measured(replace(found, size=found.size + more))
        for one in (one for one in taken if not isinstance(one, _Killed)):
            note_memory(self.state_dir, forecast.key, one)
        if taken and forecast.is_too_much and self.bound is not None:
            forecast = replace(forecast, fitting=self._fitting(forecast))
            if forecast.fitting is not None:
                note_fitting(self.state_dir, forecast.key, self.bound, forecast.fitting)
        return forecast

    def _fitting(self, forecast: MemoryForecast) -> int | None:
        """Return the largest power of two below the batch that fits; each that is looked at is run."""
        batching, way = self.step.batching, forecast.ways[-1]
        if batching.fixed is not None or batching.size is None:
            return None
        powers = [2**power for power in range((batching.size - 1).bit_length())]
        place = bisect_left(powers, True, key=lambda batch: not self._fits(forecast, way, batch))
        return powers[place - 1] if place else None

    def _fits(self, forecast: MemoryForecast, way: Way, batch: int) -> bool:
        """Return whether the job fits with another batch, with some room for rows that take more."""
        found = self._measure(forecast, way, batch)
        if isinstance(found, str) or found.over or self.bound is None:
            return False
        return found.size + forecast.rest <= self.bound * (_MARGIN if batch > 1 else 1)

    def _measure(self, forecast: MemoryForecast, way: Way, batch: int | None = None) -> MeasuredMemory | str:
        """Return what the first rows take, or why that is not known."""
        rows = forecast.first_rows
        if batch is not None:
            rows = -(-rows * batch // self.step.batching.run_size)
        limit = self.bound or available_memory()
        if limit is None:
            return "this system does not tell how much memory is free"
        if self.step.limits.memory is not None and not way.arena:
            limit = int(limit / NEAR)  # batches are halved near a limit, and what they need is to be seen
        with scratch_folder("memory") as scratch:
            tried = Measuring(folder=scratch.path, rows=rows, batch=batch, way=way, limit=limit)
            run = partial(_first_rows, tried, self.plan, self.step.job, mapped_memory())
            answer = ask_fork(run, seconds=_SECONDS, stopped=self.stopped)
        found = _verdict(answer, MeasuredMemory(way=way, size=self.bound or limit, rows=rows))
        if not isinstance(found, str):
            log.info(
                "job.measured",
                job=self.step.job,
                rows=rows,
                bytes=found.size,
                over=found.over,
                arena=way.arena,
                callers=way.callers,
                batch_size=batch or self.step.batching.run_size,
            )
        return found


class _Killed(MeasuredMemory, frozen=True, kw_only=True):
    """Too much, for this time: the kernel kills for want of memory, but anybody may, so it is not remembered."""


def _verdict(answer: Answer, limited: MeasuredMemory) -> MeasuredMemory | str:
    """Return what a fork took; `limited` says so if it took too much. Or return why that is not known."""
    over = replace(limited, over=True)
    if answer.late:
        return f"its first {limited.rows:,} rows took longer than {_SECONDS:.0f} seconds"
    if answer.code == -getattr(signal, "SIGKILL", 9):
        return _Killed(way=over.way, size=over.size, rows=over.rows, over=True)
    if answer.code != 0:
        return over if over.way.arena else f"the process that ran its first rows {how_it_ended(answer.code)}"
    said: Mapping[str, Any] = answer.messages[-1] if answer.messages else {"reason": "its first rows gave no answer"}
    if said.get("halved") or "memory ran out" in (said.get("reason") or ""):
        return over
    if said.get("status") != Status.DONE:
        return str(said.get("reason"))
    if not said["committed"]:
        return f"none of its first {limited.rows:,} rows could be run"
    return replace(limited, size=said["peak"])


def _first_rows(tried: Measuring, plan: Plan, job: str, before: int) -> Iterator[dict[str, Any]]:
    """In a fork: run first rows without a word to anybody, and yield how that went.

    The process that it was forked of had `before` bytes of libraries and other mapped files in memory, as it will have
    when it runs all rows. A fork begins without them; about half of what it reads again was there before.
    """
    lost = max(before - mapped_memory(), 0)
    plan, folder = replace(tried, limit=tried.limit - lost).of_plan(plan, job), tried.folder
    log.send_to(None)
    os.environ["OTEL_SDK_DISABLED"] = "true"
    said: list[dict[str, Any]] = []

    def say(_blob: bytes | None = None, /, **message: Any) -> None:
        said.append(message)

    with told_to_the_parent(say, "error"), closing(NativeOutput()) as native, native.taking():
        (result,) = execute(
            plan,
            folder / _STATE,
            "memory",
            observer=Silent(),
            stopped=lambda: False,
            native=native,
            row_limit=tried.rows,
        )
        with read_ledger(folder / _STATE) as ledger:
            record = None if ledger is None else ledger.output(ledger.key(folder / "out"))
        halved = record.statistics.get("batches_halved", 0) if record is not None else 0
        say(
            status=str(result.status),
            reason=result.reason,
            committed=result.committed,
            peak=(peak_memory() or 0) + lost - min(mapped_memory() - before + lost, lost) // 2,
            halved=halved,
        )
    yield from said
