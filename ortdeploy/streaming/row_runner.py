"""Runs blocks of rows on one session of a job: feeds, runs and postprocesses them. No I/O.

All batches of a block run first and are postprocessed together, so that the work around short runs costs little.
`salvage` deals with a batch that failed.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ortdeploy.durations import Histogram, timed
from ortdeploy.feeds.feeder import cut
from ortdeploy.feeds.prepared import Prepared
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.rows import Block, FailedRow, StageError
from ortdeploy.runtime.protocol import Writer
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.runs import SessionRuns
from ortdeploy.streaming.batch_runner import BatchRun, BatchRunner, Piece, RunCounts
from ortdeploy.streaming.hooks import Hooks
from ortdeploy.tensors.columns import Column, join, pick, size_bytes

if TYPE_CHECKING:
    from ortdeploy.streaming.bisect_failures import Salvage


class Outcome(Struct):
    """The results of a block: keys and outputs, [rows, …] each, and the rows that failed or were skipped.

    `state` is what the last row of a recurrent pipeline passes on.
    """

    columns: dict[str, Column]
    committed: int
    failed: list[FailedRow]
    skipped: tuple[int, ...]
    state: Any = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the results that are arrays."""
        return size_bytes(self.columns)


class RowRunner:
    """Runs blocks of one job on a session, batch by block."""

    def __init__(self, job: RunJob, opened: OpenedSession, hooks: Hooks) -> None:
        """Build every step once."""
        session = opened.session
        self._job = job
        self.counts = RunCounts()
        self._session = session
        self._written_before = session.written if isinstance(session, Writer) else {}
        self.postprocess_times = Histogram()
        self.runs = SessionRuns(job, session, opened.probe, hooks.prove(opened))
        self.runs.on_batch = hooks.on_batch
        self._batches = BatchRunner(job, self.runs, self.counts, opened.ops, hooks)
        self._fast_path = True
        self._stateful = job.pipeline is not None and bool(job.pipeline.state)
        self._wanted: int | None = None
        self._unsafe = frozenset[int]().union(*(one.rows for one in hooks.fatal))
        self._is_told = hooks.on_run is not None

    def run_smaller(self) -> bool:
        """Run half as many rows at once from the next block on; return whether that is possible. Thread-safe."""
        if self._batches.feeder.fixed or self._batches.size <= 1:
            return False
        self._wanted = -(-self._batches.size // 2)
        return True

    @property
    def halvings(self) -> int:
        """How often batches were halved: those of the job, and those of items inside of its rows."""
        return self.counts.halved + self.runs.halvings

    @property
    def progressed(self) -> float:
        """Time when the last run ended, or the last token was written, by perf_counter; 0 before the first."""
        return max(self.runs.progressed, self._session.progressed if isinstance(self._session, Writer) else 0.0)

    @property
    def written(self) -> Mapping[str, int]:
        """What a session that writes texts has written for these blocks; nothing of others."""
        if not isinstance(self._session, Writer):
            return {}
        return {name: count - self._written_before.get(name, 0) for name, count in self._session.written.items()}

    @property
    def batch_size(self) -> int:
        """The most rows of a run; fewer than planned after memory ran out."""
        return self._batches.size

    def run(self, prepared: Prepared) -> Outcome:
        """Run the rows of a block; rows that fail are named, the others give results."""
        if self._wanted is not None:
            self._batches.run_at_most(self._wanted)
            self._wanted = None
        begin, before = time.thread_time(), self.postprocess_times.cpu
        block, failed = prepared.block, list(prepared.block.failed)
        if self._stateful:
            pieces: list[Piece] | None = self._run_in_turn(prepared, failed)
        else:
            pieces = self._run_fast_path(prepared) if self._fast_path else None
            self._fast_path = pieces is not None or prepared.feeds is None
        if pieces is None:
            runs = [self._batches.run(prepared, rows, adapters) for adapters, rows in self._cut(block, failed)]
            pieces = self._finish_together(runs)
            if pieces is None:
                pieces = [piece for run in runs for piece in self._salvage.finish(block, run, failed)]
            else:
                self._fast_path = True
        self.runs.settle()
        if len(block.rows) < block.count or failed:
            failed.sort(key=lambda row: row.row)
        committed = sum(len(rows) for rows, _ in pieces)
        columns = self._collect(block, pieces)
        skipped = self._skipped(block, pieces, failed)
        state = self.runs.state if self._stateful else None
        self.runs.run_times.cpu += time.thread_time() - begin - (self.postprocess_times.cpu - before)
        return Outcome(columns=columns, committed=committed, failed=failed, skipped=skipped, state=state)

    def _run_in_turn(self, prepared: Prepared, failed: list[FailedRow]) -> list[Piece]:
        """Run rows with state: each batch is finished before the next one begins."""
        block, pieces = prepared.block, []
        for adapters, rows in self._cut(block, failed):
            for key, same in groupby(rows, lambda row: self._key(block, row)):
                self.runs.begin(key)
                run = self._batches.run(Prepared(block=block, feeds=None), list(same), adapters)
                pieces += self._salvage.finish(block, run, failed)
        return pieces

    def _key(self, block: Block, row: int) -> tuple[str, ...]:
        """Return the reset key of a row: if it changes, the state begins with zeros."""
        reset = self._job.pipeline.reset if self._job.pipeline else ()
        return tuple(str(block.key(name)[row]) for name in reset)

    def _run_fast_path(self, prepared: Prepared) -> list[Piece] | None:
        """Run a block the fast way; None if a row fails or chooses an adapter."""
        chosen = self._job.adapters
        if prepared.feeds is None or chosen.column is not None or self._job.batching.last != "short":
            return None
        if self._is_told or not self._unsafe.isdisjoint(prepared.block.rows):
            return None
        if self._batches.lost_key(prepared.block) is not None:
            return None
        batches = cut(prepared.block, self._batches.size)
        self.runs.lane.block(prepared.block.rows)
        results = self.runs.run_each(prepared.feeds, batches, chosen.always, prepared.block.rows.__getitem__)
        self.runs.lane.rest()
        if results is None:
            return None
        rows = range(len(prepared.block.rows))
        pieces = self._finish_rows(rows, results)
        if pieces is not None:
            self.counts.adapter_rows[chosen.always] += len(rows)
        return pieces

    @cached_property
    def _salvage(self) -> "Salvage":
        from ortdeploy.streaming.bisect_failures import Salvage  # noqa: PLC0415  few batches fail

        return Salvage(self._job, self._batches, self.counts)

    def _cut(self, block: Block, failed: list[FailedRow]) -> Iterator[tuple[tuple[str, ...], Sequence[int]]]:
        """Yield the rows of each run with their adapters; a row without an adapter fails."""
        chosen, size = self._job.adapters, self._batches.size
        if chosen.column is None:
            end = block.start + self._job.batching.rows_run(block.count)
            yield from ((chosen.always, rows) for rows in cut(block, size) if block.rows[rows[0]] < end)
            return
        groups: dict[tuple[str, ...], list[int]] = {}
        for row in range(len(block.rows)):
            try:
                groups.setdefault(self._batches.feeder.adapters(block, row), []).append(row)
            except StageError as error:
                from ortdeploy.streaming.bisect_failures import failed_row  # noqa: PLC0415  few rows fail

                failed.append(failed_row(self._job, block, row, error))
        for adapters, rows in groups.items():
            yield from ((adapters, rows[start : start + size]) for start in range(0, len(rows), size))

    def _finish_together(self, runs: Sequence[BatchRun]) -> list[Piece] | None:
        """Postprocess the results of all runs together; None if a run failed, or gave numbers that on_nan refuses."""
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
                self.counts.adapter_rows[run.adapters] += len(run.rows)
        return pieces

    def _finish_rows(self, rows: Sequence[int], results: dict[str, Column]) -> list[Piece] | None:
        """Postprocess rows together; None if a step fails, or on_nan refuses one of them."""
        with timed(self.postprocess_times):
            try:
                results = self._batches.postprocess(results)
            except StageError:
                return None
            finite = self._batches.finite(results, len(rows))
            return [(rows, results)] if finite is None or finite.all() else None

    def _skipped(self, block: Block, pieces: list[Piece], failed: list[FailedRow]) -> tuple[int, ...]:
        """Return the rows that are neither committed nor failed."""
        missing = block.count - len(failed) - sum(len(rows) for rows, _ in pieces)
        if not missing:
            return ()
        known = {row.row for row in failed}.union(block.rows[row] for rows, _ in pieces for row in rows)
        return tuple(row for row in range(block.start, block.start + block.count) if row not in known)

    def _collect(self, block: Block, pieces: list[Piece]) -> dict[str, Column]:
        """Join keys and results of all pieces, in the order of the rows."""
        if not pieces:
            return {}
        if len(pieces) == 1 and pieces[0][0] == range(len(block.rows)):
            keys = {name: block.key(name) for name in self._job.input.key}
            return {**keys, **{name: pieces[0][1][name] for name in self._job.output.columns}}
        chosen = [row for rows, _ in pieces for row in rows]
        order = None if chosen == sorted(chosen) else sorted(range(len(chosen)), key=chosen.__getitem__)
        chosen.sort()
        columns = {name: pick(block.key(name), chosen) for name in self._job.input.key}
        for name in self._job.output.columns:
            column = join([results[name] for _, results in pieces])
            columns[name] = column if order is None else pick(column, order)
        return columns


def _joined(results: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """Return the columns of several runs as one."""
    if len(results) == 1:
        return dict(results[0])
    return {name: join([one[name] for one in results]) for name in results[0]}
