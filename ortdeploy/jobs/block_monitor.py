"""Counts and logs the blocks that come out of a job's stream, and ends the job early if it must."""

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import OrtdeployError, StoppedError
from ortdeploy.events import log
from ortdeploy.facts.data import FileStates
from ortdeploy.facts.memory import ROWS_AND_RESULTS
from ortdeploy.jobs.error_budget import ErrorBudget
from ortdeploy.jobs.failed_row_details import DeadLetters
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_report import JobReport
from ortdeploy.jobs.unverified_inputs import InputVerifier
from ortdeploy.parts.position import Position
from ortdeploy.plan.selection import openings_of
from ortdeploy.plan.steps import RunJob
from ortdeploy.process.leaks import GROWTH
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.reports.memory_told import growth, told
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.streaming.member import Finished
from ortdeploy.streaming.stream import Stream
from ortdeploy.units import format_size

if TYPE_CHECKING:
    from ortdeploy.ledger.live_progress import Live
    from ortdeploy.results.rows import FailedRow

_KEPT_OF_A_FILE = 256
"""Bytes that a job keeps of each file that it has read, such as its name and digest; of short names, half of that."""


class _Ahead(Iterator[Finished]):
    """Blocks, of which the next one is made before it is asked for where it must be known whether there is one.

    It is counted when it is asked for: its failed rows and its state are those of a part that is not written yet.
    """

    def __init__(self, blocks: Iterator[Finished]) -> None:
        self._blocks = blocks
        self._next: list[Finished] = []
        self._error: Exception | None = None

    def __next__(self) -> Finished:
        if self._error is not None:
            raise self._error
        return self._next.pop() if self._next else next(self._blocks)

    def is_at_end(self) -> bool:
        """Return whether there is no further block; an error is raised in its turn."""
        if self._error is None and not self._next:
            try:
                self._next.append(next(self._blocks))
            except StopIteration:
                return True
            except Exception as error:  # noqa: BLE001  `__next__` raises it
                self._error = error
        return False


class BlockMonitor:
    """Counts the blocks of one job. `done` is the number of finished rows, `state` what the last of them passes on.

    `pending` are the failed rows that are not in the ledger yet, `vouched` the files that the blocks vouch for.
    """

    def __init__(
        self, context: JobContext, position: Position, stream: Stream, memory: MemoryWatch, report: JobReport
    ) -> None:
        """Begin where the job continues; `live` shows its progress to other processes."""
        self._observer = context.observer
        self._stream = stream
        self._memory = memory
        self._report = report
        self._expected_growth = _expected_growth(context.step)
        self._keeps_shapes = _keeps_shapes(context)
        self._letters = DeadLetters(context, context.step.input.files)
        self.done = position.done
        self.state = position.state
        self.pending: list[FailedRow] = []
        self.vouched = InputVerifier(FileStates.of(context.step.input.files))
        earlier = position.failed_earlier
        self.budget = ErrorBudget(context.step, position.failed, position.failed_last, earlier=earlier)
        self.live: Live | None = None
        self._ahead = _Ahead(iter(()))

    def count(self, finished: Iterator[Finished]) -> Generator[Finished]:
        """Yield blocks and count them. Raises what ends the job before its input does.

        A block whose failed rows are too many for the budget is not passed on: the next run tries it again.
        """
        self._ahead = _Ahead(finished)
        try:
            for one in self._ahead:
                self._note(one)
                rows = one.block.count
                yield one
                del one  # its memory is for other blocks
                if self._memory.is_near():
                    self._keep_to_memory()
                self._watch_for_leak(rows)
        finally:
            finished.close()  # type: ignore[attr-defined]  # it is a generator
        if self._stream.stopped:
            raise StoppedError

    def is_at_end(self) -> bool:
        """Return whether the input ends behind the blocks so far."""
        return self._ahead.is_at_end() and not self._stream.stopped

    def _note(self, finished: Finished) -> None:
        """Count a block. Raises BudgetError if its failed rows are too many."""
        self._log_block(finished)
        self._report.note_first_rows()
        self._report.gauges.look()
        self.state = finished.outcome.state or self.state
        self.pending += self._letters.completed(finished.outcome.failed)
        self.budget.note(finished.block, finished.outcome.failed)
        self.done += finished.block.count
        if finished.block.contents is not None:
            self.vouched.add(finished.block.contents)
        self._report.statistics.look(self.done)
        self._observer.rows_done(self.done, self.budget.failed)
        if self.live is not None:
            self.live.rows_done(self.done, self.budget.failed)

    def _log_block(self, finished: Finished) -> None:
        block = finished.block
        for row in finished.outcome.failed:
            log.warning(
                "row.failed", row=row.row, source=row.source, stage=row.stage, code=row.code, reason=row.message
            )
        log.debug("block.finished", start=block.start, rows=block.count, seconds=finished.seconds)

    def _keep_to_memory(self) -> None:
        """Run smaller batches near the memory limit. Raises OrtdeployError beyond it, if nothing else helps."""
        smaller = [member.rows.run_smaller() for member in self._stream.members]
        taken, limit = format_size(self._memory.resident), format_size(self._memory.limit or 0)
        if any(smaller):
            self._report.statistics.note("near the memory limit: smaller batches")
        log.warning("job.near_limit", resident=taken, limit=limit)
        if self._memory.is_over and not any(smaller):
            more = told({GROWTH: self._report.statistics.growth})
            advice = f": {more[0]}" if more else ". Raise limits: {memory: …}, or write memory: lean for the model"
            both = f"the process takes {taken} of memory and may take {limit}"
            raise OrtdeployError(f"{both}, with batches that cannot be smaller{advice}")

    def _watch_for_leak(self, rows: int) -> None:
        statistics = self._report.statistics
        if not self._memory.leak.look(rows, self._expected_growth):
            return
        shapes = max(len(member.rows.runs.shapes) for member in self._stream.members) if self._keeps_shapes else 0
        begins = not statistics.growth
        statistics.growth = growth(self._memory, shapes)
        if self.live is not None:
            self.live.growth = statistics.growth
        if begins and statistics.growth:
            log.warning("job.leaks", reason=told({GROWTH: statistics.growth})[0], **statistics.growth)


def _expected_growth(step: RunJob) -> int:
    """Return the bytes by which memory grows with files and the rows of a part; without an end if nobody knows."""
    forecast = step.limits.forecast
    if SINKS[step.output.format].PART_COPIES and (forecast is None or forecast.unknown is not None):
        return sys.maxsize
    parts = forecast.parts if forecast is not None else ()
    rows = sum(part.size for part in parts if part.what == ROWS_AND_RESULTS)
    return rows + len(step.input.files) * _KEPT_OF_A_FILE


def _keeps_shapes(context: JobContext) -> bool:
    """Return whether sessions of a job keep memory for each shape that they were fed: not those of `memory: lean`.

    Nor those that were opened without an arena, for a limit.
    """
    opened = context.opened.step
    return any(
        one.options.get("enable_cpu_mem_arena", True) or one.options.get("enable_mem_pattern", True)
        for one in (openings_of(context.plan, context.step) if opened is None else [opened])
    )
