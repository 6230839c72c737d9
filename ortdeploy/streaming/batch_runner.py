"""Runs one batch: some rows of a block, fed together to one session, postprocessed, and checked for NaN."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct, field

from ortdeploy.events import log
from ortdeploy.feeds.feeder import Feeder
from ortdeploy.feeds.prepared import Prepared
from ortdeploy.plan.pipeline import PlannedWireStep
from ortdeploy.plan.steps import PlannedStep, RunJob
from ortdeploy.results.rows import Block, StageError
from ortdeploy.sessions.runs import SessionRuns
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.lost import lost_key, unwritable, why_lost
from ortdeploy.streaming.exploded import check_lists
from ortdeploy.streaming.hooks import Hooks
from ortdeploy.tensors.columns import Array, Column, OpRun, OpRunners, finite_rows
from ortdeploy.tensors.types import TensorType

Piece = tuple[Sequence[int], dict[str, Column]]
"""Rows of a block, by their places in it, and their results."""


class RunCounts(Struct):
    """Counts of rows and batches of one session, for the statistics of its job."""

    adapter_rows: Counter[tuple[str, ...]] = field(default_factory=Counter)
    retried: int = 0
    cut_anew: int = 0
    halved: int = 0


class BatchRun(Struct):
    """Rows of a block that ran together: their feeds and results, [rows, …] each, or the reason why there are none."""

    rows: Sequence[int]
    adapters: tuple[str, ...]
    feeds: dict[str, Array] | None = None
    results: dict[str, Column] = field(default_factory=dict)
    error: StageError | None = None


class BatchRunner:
    """Runs batches of one job on a session. `size` is the most rows of a run: fewer than planned if memory ran out."""

    def __init__(self, job: RunJob, runs: SessionRuns, counts: RunCounts, ops: OpRunners, hooks: Hooks) -> None:
        """Build every step once; `ops` run those that are operators."""
        self._job = job
        self.runs = runs
        self._counts = counts
        self._fatal = hooks.fatal
        self._on_run = hooks.on_run
        self._sink = SINKS[job.output.format]
        self._postprocess = [(step, _build_postprocess(step, ops)) for step in job.postprocess]
        self.feeder = Feeder(job, ops)
        self.size = job.batching.run_size

    def run(self, prepared: Prepared, rows: Sequence[int], adapters: tuple[str, ...]) -> BatchRun:
        """Run some rows together; their tensors are cut from the block's, if it has some."""
        run = BatchRun(rows=rows, adapters=adapters)
        try:
            if prepared.feeds is None:
                run.feeds = self.feeder.prepare_batch(prepared.block, rows)
            else:
                run.feeds = self.feeder.cut_batch(prepared.feeds, rows)
            self._refuse_fatal(prepared.block, rows)
            lost = self.lost_key(prepared.block, rows)
            if lost is not None:
                raise unwritable(self._job.output.format, lost)
            run.results = self._run_observed(run.feeds, prepared.block, rows, adapters)
        except StageError as error:
            run.error = error
        return run

    def lost_key(self, block: Block, rows: Sequence[int] | None = None) -> str | None:
        """Return which key of a block, or of some of its rows, the output's format does not hold, in words."""
        return lost_key(self._sink, {name: block.key(name) for name in self._job.input.key}, rows)

    def _refuse_fatal(self, block: Block, rows: Sequence[int]) -> None:
        """Raise StageError if these rows, or some of them, ended a process."""
        if self._fatal:
            numbers = {block.rows[row] for row in rows}
            for one in self._fatal:
                if one.stops(numbers):
                    raise one.error()

    def _run_observed(
        self, feeds: Mapping[str, Array], block: Block, rows: Sequence[int], adapters: tuple[str, ...]
    ) -> dict[str, Column]:
        """Run feeds, and say which rows run and that they have run, if somebody wants to know."""
        self.runs.running = rows

        def number(place: int) -> int:
            return block.rows[rows[place]]

        if self._on_run is None:
            self.runs.lane.run(block.rows[rows[0]], block.rows[rows[-1]])
            try:
                return self.runs.run(feeds, len(rows), adapters, number)
            finally:
                self.runs.lane.rest()
        self._on_run([block.rows[row] for row in rows])
        try:
            return self.runs.run(feeds, len(rows), adapters, number)
        finally:
            self._on_run(())

    def run_at_most(self, rows: int) -> None:
        """Limit the rows of each later run."""
        if rows < self.size:
            log.warning("batch.halved", rows=rows, before=self.size, models=list(self._job.row_check.declared))
            self._counts.halved += 1
            self.size = rows
            self.feeder.reduce_batch_size(rows)

    def postprocess(self, results: dict[str, Column]) -> dict[str, Column]:
        """Add the columns of every postprocess step to the results, and check that they can be written.

        Exploded ones must agree in length. Raises StageError.
        """
        for step, apply in self._postprocess:
            try:
                made = apply(results)
            except (ValueError, IndexError, ArithmeticError, TypeError) as error:
                raise StageError("postprocess", step.name, str(error)) from error
            results.update(zip(step.results, made, strict=True))
        if self._job.output.explode:
            try:
                check_lists(results, self._job.output.explode)
            except ValueError as error:
                raise StageError("postprocess", "explode", f"output: explode: {error}") from error
        for name in self._job.output.columns:
            lost = why_lost(self._sink, results[name])
            if lost is not None:
                raise unwritable(self._job.output.format, f'"{name}" is {lost}')
        return results

    def finite(self, results: dict[str, Column], rows: int) -> Array | None:
        """Return bool [rows], whether the outputs that on_nan looks at are all finite; None if it looks at none."""
        names = self._job.errors.check_finite
        if not names:
            return None
        finite = np.ones(rows, dtype=bool)
        for name in names:
            finite &= finite_rows(results[name])
        return finite


def _build_postprocess(step: PlannedStep, ops: OpRunners) -> Callable[[Mapping[str, Column]], Sequence[Column]]:
    """Return the function that computes a step's results from those so far."""
    if step.op is not None:
        return partial(_run_op, step.op, ops[step.op.name])
    from ortdeploy.transforms.catalogue import POSTPROCESS  # noqa: PLC0415  only for steps

    apply = POSTPROCESS[step.name].build(step.options, TensorType(step.dtype, step.shape, step.layout))
    return lambda results: apply(np.asarray(results[step.options[step.name]]))


def _run_op(line: PlannedWireStep, run: OpRun, results: Mapping[str, Column]) -> list[Column]:
    taken = {name: results[name] for _, name in line.wires}
    found = run(taken, len(next(iter(taken.values()))))
    return [found[name] for _, name in line.outputs]
