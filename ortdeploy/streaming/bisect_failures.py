"""Saves the good rows of a failed batch: it is split until the bad rows are alone, and the others give results."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ortdeploy.events import log
from ortdeploy.feeds.prepared import Prepared
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, Block, FailedRow, StageError
from ortdeploy.retries import try_again
from ortdeploy.streaming.batch_runner import BatchRun, BatchRunner, Piece, RunCounts
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.json_values import json_value

_NOT_FINITE = "an output holds NaN or an infinity"


class Salvage:
    """Takes the results of batches, and runs the rows of a failed batch again."""

    def __init__(self, job: RunJob, batches: BatchRunner, counts: RunCounts) -> None:
        self._job = job
        self._batches = batches
        self._counts = counts
        self._stateful = job.pipeline is not None and bool(job.pipeline.state)

    def finish(self, block: Block, run: BatchRun, failed: list[FailedRow]) -> list[Piece]:
        """Postprocess the results of a run; if it failed, run each half of its rows. Add rows that fail to `failed`."""
        rows = run.rows
        if run.error is None:
            try:
                results = self._batches.postprocess(dict(run.results))
            except StageError as error:
                run.error = error
        if run.error is not None:
            return self._split(block, run, run.error, failed)
        finite = self._batches.finite(results, len(rows))
        if finite is None or finite.all():
            self._counts.adapter_rows[run.adapters] += len(rows)
            return [(rows, results)]
        return self._sift(block, run, (results, finite), failed)

    def _sift(
        self, block: Block, run: BatchRun, found: tuple[dict[str, Column], Array], failed: list[FailedRow]
    ) -> list[Piece]:
        """Keep the finite rows of the results `found`; rows that NaN of other rows may have reached run again.

        `found` has columns [rows, …], and bool [rows], whether all values of a row are finite.
        """
        rows, (results, finite) = run.rows, found
        if self._stateful:  # the state would pass on what is not finite
            self._batches.runs.undo()
            if len(rows) > 1:
                return self._run_halves(block, run, failed, _NOT_FINITE)
        clean = self._batches.feeder.finite_rows(run.feeds or {}, len(rows))
        if not clean.all() and (clean & ~finite).any():  # a graph that mixes rows: NaN of some may have reached others
            self._refuse_not_finite(block, rows, clean, failed)
            self._note_cut(block, rows, _NOT_FINITE)
            return self._again(block, [row for row, fine in zip(rows, clean, strict=True) if fine], run, failed)
        self._counts.adapter_rows[run.adapters] += len(rows)
        self._refuse_not_finite(block, rows, finite, failed)
        return _keep(rows, results, finite)

    def _split(self, block: Block, run: BatchRun, error: StageError, failed: list[FailedRow]) -> list[Piece]:
        """Run each half of the rows of a failed run. What cannot be split is tried again, then a single row fails."""
        rows = run.rows
        if run.results:
            self._batches.runs.undo()
        attempts = 1
        if len(rows) == 1 or self._is_short_of_all(error):
            run, attempts = self._retry(block, run)
            if run.error is None:
                return self.finish(block, run, failed)
            error = run.error
        if len(rows) > 1:
            if error.no_memory:
                self._halve(len(rows), error)
            return self._run_halves(block, run, failed, str(error))
        failed.append(failed_row(self._job, block, rows[0], error, attempts))
        return []

    def _run_halves(self, block: Block, run: BatchRun, failed: list[FailedRow], reason: str) -> list[Piece]:
        self._note_cut(block, run.rows, reason)
        middle = -(-len(run.rows) // 2)
        halves = run.rows[:middle], run.rows[middle:]
        return [piece for half in halves for piece in self._again(block, half, run, failed)]

    def _note_cut(self, block: Block, rows: Sequence[int], reason: str) -> None:
        """Count a batch whose rows get other neighbours; log it if results may depend on them."""
        self._counts.cut_anew += 1
        models = self._job.row_check.declared
        if models:
            first, last = block.rows[rows[0]], block.rows[rows[-1]]
            log.warning("batch.cut_anew", first=first, last=last, models=list(models), reason=reason)

    def _again(self, block: Block, rows: Sequence[int], like: BatchRun, failed: list[FailedRow]) -> list[Piece]:
        """Run some of a run's rows once more."""
        return self.finish(block, self._batches.run(Prepared(block=block, feeds=None), rows, like.adapters), failed)

    def _is_short_of_all(self, error: StageError) -> bool:
        """Return whether memory ran out in a batch that cannot be smaller."""
        return error.no_memory and self._batches.feeder.fixed

    def _retry(self, block: Block, run: BatchRun) -> tuple[BatchRun, int]:
        """Run the same rows again while the failure may pass; return the last run, and the number of runs."""
        again = partial(self._batches.run, Prepared(block=block, feeds=None), run.rows, run.adapters)
        first, last = block.rows[run.rows[0]], block.rows[run.rows[-1]]
        what = f"run of row {first}" if first == last else f"run of rows {first} to {last}"
        run, attempts = try_again(run, again, _why_it_may_pass, what, self._job.errors.retries)
        self._counts.retried += attempts - 1
        return run, attempts

    def _halve(self, rows: int, error: StageError) -> None:
        """Run fewer rows at once: memory ran out with this many. Raises MemoryError if that is impossible."""
        if self._batches.feeder.fixed:
            raise MemoryError(str(error))
        self._batches.run_at_most(-(-rows // 2))

    def _refuse_not_finite(self, block: Block, rows: Sequence[int], fine: Array, failed: list[FailedRow]) -> None:
        """Turn rows that are not `fine`, bool [rows], into failed rows if on_nan says so."""
        if self._job.errors.on_nan == "fail":
            error = StageError("run", "not-finite", _NOT_FINITE)
            failed += [
                failed_row(self._job, block, row, error) for row, good in zip(rows, fine, strict=True) if not good
            ]


def failed_row(job: RunJob, block: Block, row: int, error: StageError, attempts: int = 1) -> FailedRow:
    """Return a row of a block, by its place in it, as one that failed."""
    return FailedRow(
        row=block.rows[row],
        source=block.source(row),
        stage=error.stage,
        code=error.code,
        message=str(error),
        key={name: json_value(block.key(name)[row]) for name in job.input.key},
        attempts=attempts,
        path=str(block.columns[FILE_PATH][row]) if FILE_PATH in block.columns else "",
        file_row=int(block.columns[FILE_ROW][row]) if FILE_ROW in block.columns else None,
    )


def _why_it_may_pass(run: BatchRun) -> str | None:
    """Return why a run failed, if another one may do better: also for want of memory, which others may give back."""
    return str(run.error) if run.error is not None and (run.error.transient or run.error.no_memory) else None


def _keep(rows: Sequence[int], results: dict[str, Column], chosen: Array) -> list[Piece]:
    """Return the `chosen` rows, bool [rows], with their results [rows, …]."""
    kept = [row for row, fine in zip(rows, chosen, strict=True) if fine]
    picked: dict[str, Column] = {
        name: [column[row] for row in np.flatnonzero(chosen)] if isinstance(column, list) else column[chosen]
        for name, column in results.items()
    }
    return [(kept, picked)] if kept else []
