"""What happens to rows between source and sink: fed, run, postprocessed. One object a job and session, no I/O.

All batches of a block are run, then postprocessed at once: what is done around a run costs little where runs are short.
A failing batch is split until the bad row is alone; the rest is kept.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import structlog

from ortdeploy.durations import Histogram, timed
from ortdeploy.feeds.feeder import Feeder, cut
from ortdeploy.plan.steps import PlannedStep, RunJob
from ortdeploy.results.rows import Block, FailedRow, StageError
from ortdeploy.retries import try_again
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.cpu_comparison import CpuComparison
from ortdeploy.sessions.row_proof import MixedRowsError, RowProof
from ortdeploy.sessions.runs import SessionRuns
from ortdeploy.tensors.columns import Array, Column, join, pick, size_bytes
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.catalogue import POSTPROCESS
from ortdeploy.transforms.protocol import Apply

log = structlog.get_logger()

_NOT_FINITE = "an output holds NaN or an infinity"

Piece = tuple[Sequence[int], dict[str, Column]]
"""Rows of a block, by their places in it, and their results."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The results of a block, keys and outputs, and its rows that failed or were skipped.

    `state` is what its last row hands on, of a pipeline that has some.
    """

    columns: dict[str, Column]
    committed: int
    failed: list[FailedRow]
    skipped: tuple[int, ...]
    state: Any = None

    @property
    def size_bytes(self) -> int:
        """The room that the results take, as far as they are arrays."""
        return size_bytes(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A block with the tensors of all its rows; None where its batches must be fed one by one."""

    block: Block
    feeds: dict[str, Array] | None

    @property
    def size_bytes(self) -> int:
        """The room that the rows take, as far as they are arrays."""
        return size_bytes(self.block.columns) + size_bytes(self.feeds or {})


@dataclass(slots=True, kw_only=True)
class _Run:
    """Some rows of a block that were run together: what they were fed, and their results or why there are none."""

    rows: Sequence[int]
    adapters: tuple[str, ...]
    feeds: dict[str, Array] | None = None
    results: dict[str, Column] = field(default_factory=dict)
    error: StageError | None = None


class RowRunner:
    """Runs blocks of one job on a session, batch by block."""

    def __init__(
        self, job: RunJob, session: Session, probe: CpuComparison | None = None, proof: RowProof | None = None
    ) -> None:
        """Build every step once."""
        self._job = job
        self._feeder = Feeder(job)
        self._runs = SessionRuns(job, session, probe, proof)
        self._postprocess = [(step, _build_postprocess(step)) for step in job.postprocess]
        self._batching = job.batching
        self._size = job.batching.run_size
        self.adapter_rows: Counter[tuple[str, ...]] = Counter()
        self.postprocess_times = Histogram()
        self.retried = 0
        self.cut_anew = self.halved = 0
        self._smooth = True
        self._stateful = job.pipeline is not None and bool(job.pipeline.state)
        self._wanted: int | None = None

    def run_smaller(self) -> bool:
        """Run half as many rows at once, from the next block on; return whether that can be. Any thread may ask."""
        if self._feeder.fixed or self._size <= 1:
            return False
        self._wanted = -(-self._size // 2)
        return True

    @property
    def run_times(self) -> Histogram:
        """How long the runs took."""
        return self._runs.run_times

    @property
    def progressed(self) -> float:
        """When the last run ended, as perf_counter tells; 0 before the first."""
        return self._runs.progressed

    @property
    def batch_size(self) -> int:
        """How many rows a run has at most; less than planned where memory ran out."""
        return self._size

    def run(self, prepared: Prepared) -> Outcome:
        """Run the rows of a block; rows that fail are named, the others give results."""
        if self._wanted is not None:
            self._run_at_most(self._wanted)
            self._wanted = None
        begin, before = time.thread_time(), self.postprocess_times.cpu
        block, failed = prepared.block, list(prepared.block.failed)
        if self._stateful:
            pieces: list[Piece] | None = self._run_in_turn(prepared, failed)
        else:
            pieces = self._run_smoothly(prepared) if self._smooth else None
            self._smooth = pieces is not None or prepared.feeds is None
        if pieces is None:
            runs = [self._run_batch(prepared, rows, adapters) for adapters, rows in self._batches(block, failed)]
            pieces = self._finish_together(runs)
            if pieces is None:
                pieces = [piece for run in runs for piece in self._finish(block, run, failed)]
            else:
                self._smooth = True
        self._runs.settle()
        if len(block.rows) < block.count or failed:
            failed.sort(key=lambda row: row.row)
        committed = sum(len(rows) for rows, _ in pieces)
        columns = self._collect(block, pieces)
        skipped = self._skipped(block, pieces, failed)
        state = self._runs.state if self._stateful else None
        self.run_times.cpu += time.thread_time() - begin - (self.postprocess_times.cpu - before)
        return Outcome(columns=columns, committed=committed, failed=failed, skipped=skipped, state=state)

    def go_on_from(self, state: Any) -> None:
        """Take up what the last committed row has handed on."""
        self._runs.go_on_from(state)

    def _run_in_turn(self, prepared: Prepared, failed: list[FailedRow]) -> list[Piece]:
        """Run rows that hand something on to the next: a batch is done with before the next one begins."""
        block, pieces = prepared.block, []
        for adapters, rows in self._batches(block, failed):
            for key, same in groupby(rows, lambda row: self._key(block, row)):
                self._runs.begin(key)
                run = self._run_batch(Prepared(block=block, feeds=None), list(same), adapters)
                pieces += self._finish(block, run, failed)
        return pieces

    def _key(self, block: Block, row: int) -> tuple[str, ...]:
        """Return what a row belongs to: where that changes, state begins anew."""
        reset = self._job.pipeline.reset if self._job.pipeline else ()
        return tuple(str(block.columns[name][row]) for name in reset)

    def _run_smoothly(self, prepared: Prepared) -> list[Piece] | None:
        """Run a block of which nothing fails and no adapter is chosen by row; None where it is another one."""
        chosen = self._job.adapters
        if prepared.feeds is None or chosen.column is not None or self._batching.last != "short":
            return None
        batches = cut(prepared.block, self._size)
        results = self._runs.run_each(prepared.feeds, batches, chosen.always)
        if results is None:
            return None
        rows = range(len(prepared.block.rows))
        pieces = self._finish_rows(rows, results)
        if pieces is not None:
            self.adapter_rows[chosen.always] += len(rows)
        return pieces

    def _batches(self, block: Block, failed: list[FailedRow]) -> Iterator[tuple[tuple[str, ...], Sequence[int]]]:
        """Yield the rows of each run with their adapters; rows that no adapter is meant for fail."""
        chosen, size = self._job.adapters, self._size
        if chosen.column is None:
            end = block.start + self._batching.rows_run(block.count)
            yield from ((chosen.always, rows) for rows in cut(block, size) if block.rows[rows[0]] < end)
            return
        groups: dict[tuple[str, ...], list[int]] = {}
        for row in range(len(block.rows)):
            try:
                groups.setdefault(self._feeder.adapters(block, row), []).append(row)
            except StageError as error:
                failed.append(self._failure(block, row, error))
        for adapters, rows in groups.items():
            yield from ((adapters, rows[start : start + size]) for start in range(0, len(rows), size))

    def _run_batch(self, prepared: Prepared, rows: Sequence[int], adapters: tuple[str, ...]) -> _Run:
        """Run some rows together, with tensors cut from the block's where there are some."""
        run = _Run(rows=rows, adapters=adapters)
        try:
            if prepared.feeds is None:
                run.feeds = self._feeder.prepare_batch(prepared.block, rows)
            else:
                run.feeds = self._feeder.cut_batch(prepared.feeds, rows)
            run.results = self._runs.run(run.feeds, len(rows), adapters)
        except StageError as error:
            run.error = error
        except MixedRowsError as error:
            if error.place is None:
                raise
            raise error.with_row(prepared.block.rows[rows[error.place]]) from error
        return run

    def _finish_together(self, runs: Sequence[_Run]) -> list[Piece] | None:
        """Postprocess what all runs gave at once; None where some failed, or gave numbers that on_nan refuses."""
        if any(run.error for run in runs):
            return None
        if not runs:
            return []
        if self._job.adapters.column is None:
            rows: Sequence[int] = range(runs[0].rows[0], runs[-1].rows[-1] + 1)
        else:
            rows = [row for run in runs for row in run.rows]
        pieces = self._finish_rows(rows, _joined([run.results for run in runs]))
        if pieces is not None:
            for run in runs:
                self.adapter_rows[run.adapters] += len(run.rows)
        return pieces

    def _finish_rows(self, rows: Sequence[int], results: dict[str, Column]) -> list[Piece] | None:
        """Postprocess rows together; None where a step fails, or on_nan refuses one of them."""
        with timed(self.postprocess_times):
            try:
                results = self._apply_postprocess(results)
            except StageError:
                return None
            finite = self._finite(results, len(rows))
            return [(rows, results)] if finite is None or finite.all() else None

    def _finish(self, block: Block, run: _Run, failed: list[FailedRow]) -> list[Piece]:
        """Postprocess what a run gave; where it failed, each half of its rows on its own."""
        rows = run.rows
        if run.error is None:
            try:
                results = self._apply_postprocess(dict(run.results))
            except StageError as error:
                run.error = error
        if run.error is not None:
            return self._split(block, run, run.error, failed)
        finite = self._finite(results, len(rows))
        if finite is None or finite.all():
            self.adapter_rows[run.adapters] += len(rows)
            return [(rows, results)]
        if self._stateful:  # what is not finite would be handed on
            self._runs.undo()
            if len(rows) > 1:
                return self._run_halves(block, run, failed, _NOT_FINITE)
        clean = self._feeder.finite_rows(run.feeds or {}, len(rows))
        if not clean.all() and (clean & ~finite).any():  # a graph that mixes rows: NaN of some may have reached others
            self._refuse_not_finite(block, rows, clean, failed)
            self._note_cut(block, rows, _NOT_FINITE)
            return self._again(block, [row for row, fine in zip(rows, clean, strict=True) if fine], run, failed)
        self.adapter_rows[run.adapters] += len(rows)
        self._refuse_not_finite(block, rows, finite, failed)
        return _keep(rows, results, finite)

    def _split(self, block: Block, run: _Run, error: StageError, failed: list[FailedRow]) -> list[Piece]:
        """Run each half of the rows of a failed run; a row that is alone fails, or is tried once more."""
        rows = run.rows
        if run.results:
            self._runs.undo()
        if len(rows) > 1:
            if error.no_memory:
                self._halve(len(rows), error)
            return self._run_halves(block, run, failed, str(error))
        attempts = 1
        if error.transient and self._job.errors.retries:
            run, attempts = self._retry(block, run)
            if run.error is None:
                return self._finish(block, run, failed)
            error = run.error
        failed.append(self._failure(block, rows[0], error, attempts))
        return []

    def _run_halves(self, block: Block, run: _Run, failed: list[FailedRow], reason: str) -> list[Piece]:
        self._note_cut(block, run.rows, reason)
        middle = -(-len(run.rows) // 2)
        halves = run.rows[:middle], run.rows[middle:]
        return [piece for half in halves for piece in self._again(block, half, run, failed)]

    def _note_cut(self, block: Block, rows: Sequence[int], reason: str) -> None:
        """Count a batch whose rows get other neighbours; where results depend on these, that is worth a word."""
        self.cut_anew += 1
        models = self._job.row_check.declared
        if models:
            first, last = block.rows[rows[0]], block.rows[rows[-1]]
            log.warning("batch.cut_anew", first=first, last=last, models=list(models), reason=reason)

    def _again(self, block: Block, rows: Sequence[int], like: _Run, failed: list[FailedRow]) -> list[Piece]:
        """Run some of a run's rows once more."""
        return self._finish(block, self._run_batch(Prepared(block=block, feeds=None), rows, like.adapters), failed)

    def _retry(self, block: Block, run: _Run) -> tuple[_Run, int]:
        """Run a single row until it does not fail for a passing reason; return that run, and how many it took."""
        again = partial(self._run_batch, Prepared(block=block, feeds=None), run.rows, run.adapters)
        run, attempts = try_again(run, again, _may_pass, self._job.errors.retries)
        self.retried += attempts - 1
        return run, attempts

    def _halve(self, rows: int, error: StageError) -> None:
        """Run fewer rows at once from now on: memory ran out with so many. Raises MemoryError where that can't be."""
        if self._feeder.fixed:
            raise MemoryError(str(error))
        self._run_at_most(-(-rows // 2))

    def _run_at_most(self, rows: int) -> None:
        if rows < self._size:
            log.warning("batch.halved", rows=rows, before=self._size, models=list(self._job.row_check.declared))
            self.halved += 1
            self._size = rows
            self._feeder.run_less(rows)

    def _skipped(self, block: Block, pieces: list[Piece], failed: list[FailedRow]) -> tuple[int, ...]:
        """Return the rows that are neither committed nor failed."""
        missing = block.count - len(failed) - sum(len(rows) for rows, _ in pieces)
        if not missing:
            return ()
        known = {row.row for row in failed}.union(block.rows[row] for rows, _ in pieces for row in rows)
        return tuple(row for row in range(block.start, block.start + block.count) if row not in known)

    def _apply_postprocess(self, results: dict[str, Column]) -> dict[str, Column]:
        for step, apply in self._postprocess:
            try:
                made = apply(np.asarray(results[step.options[step.name]]))
            except (ValueError, IndexError, ArithmeticError, TypeError) as error:
                raise StageError("postprocess", step.name, str(error)) from error
            results.update(zip(step.results, made, strict=True))
        return results

    def _finite(self, results: dict[str, Column], rows: int) -> Array | None:
        """Tell of each row whether the outputs that on_nan looks at are all finite; None where it looks at none."""
        if not self._job.errors.check_finite:
            return None
        finite = np.ones(rows, dtype=bool)
        for name in self._job.errors.check_finite:
            finite &= _finite_rows(results[name])
        return finite

    def _refuse_not_finite(self, block: Block, rows: Sequence[int], fine: Array, failed: list[FailedRow]) -> None:
        """Make failed rows of those that are not fine, where on_nan says so; else they count as skipped."""
        if self._job.errors.on_nan == "fail":
            error = StageError("run", "not-finite", _NOT_FINITE)
            failed += [self._failure(block, row, error) for row, good in zip(rows, fine, strict=True) if not good]

    def _failure(self, block: Block, row: int, error: StageError, attempts: int = 1) -> FailedRow:
        key = {name: _json_value(block.columns[name][row]) for name in self._job.input.key}
        return FailedRow(
            row=block.rows[row],
            source=block.source(row),
            stage=error.stage,
            code=error.code,
            message=str(error),
            key=key,
            attempts=attempts,
        )

    def _collect(self, block: Block, pieces: list[Piece]) -> dict[str, Column]:
        """Put keys and results of all pieces together again, in the order of the rows."""
        if not pieces:
            return {}
        if len(pieces) == 1 and pieces[0][0] == range(len(block.rows)):
            keys = {name: block.columns[name] for name in self._job.input.key}
            return {**keys, **{name: pieces[0][1][name] for name in self._job.output.columns}}
        chosen = [row for rows, _ in pieces for row in rows]
        order = None if chosen == sorted(chosen) else sorted(range(len(chosen)), key=chosen.__getitem__)
        chosen.sort()
        columns = {name: pick(block.columns[name], chosen) for name in self._job.input.key}
        for name in self._job.output.columns:
            column = join([results[name] for _, results in pieces])
            columns[name] = column if order is None else pick(column, order)
        return columns


def _may_pass(run: _Run) -> bool:
    return run.error is not None and run.error.transient


def _joined(results: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """Return the columns of several runs as one."""
    if len(results) == 1:
        return dict(results[0])
    return {name: join([one[name] for one in results]) for name in results[0]}


def _keep(rows: Sequence[int], results: dict[str, Column], chosen: Array) -> list[Piece]:
    """Return the chosen rows with their results."""
    kept = [row for row, fine in zip(rows, chosen, strict=True) if fine]
    picked: dict[str, Column] = {
        name: [column[row] for row in np.flatnonzero(chosen)] if isinstance(column, list) else column[chosen]
        for name, column in results.items()
    }
    return [(kept, picked)] if kept else []


def _finite_rows(column: Column) -> Array:
    """Tell of each row whether all its numbers are finite."""
    if isinstance(column, list):
        return np.array([_is_finite(value) for value in column], dtype=bool)
    return np.asarray(np.isfinite(column).reshape(len(column), -1).all(axis=1))


def _is_finite(value: Any) -> bool:
    """Tell whether all numbers of a sequence or a map are finite."""
    if isinstance(value, dict | list):
        return all(_is_finite(item) for item in (value.values() if isinstance(value, dict) else value))
    numbers = np.asarray(value)
    return not np.issubdtype(numbers.dtype, np.floating) or bool(np.isfinite(numbers).all())


def _json_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _build_postprocess(step: PlannedStep) -> Apply:
    return POSTPROCESS[step.name].build(step.options, TensorType(step.dtype, step.shape, step.layout))
