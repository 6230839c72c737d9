"""Runs one job: blocks go from the source through the sessions into parts, and each part is committed.

Whatever ends a job early leaves it in a state from which the next run continues.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.feeds.row_sources import open_rows
from ortdeploy.jobs.block_monitor import BlockMonitor
from ortdeploy.jobs.ending import Ending, carry_out, failed_too
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_report import JobReport, log_end
from ortdeploy.jobs.job_statistics import JobStatistics
from ortdeploy.jobs.part_loop import PartLoop
from ortdeploy.jobs.provenance import provenance
from ortdeploy.jobs.resume import resume
from ortdeploy.jobs.unreadable_files import UnreadableFiles
from ortdeploy.ledger.ledger import now
from ortdeploy.ledger.live_progress import Live
from ortdeploy.parts.begun_part import BegunPart
from ortdeploy.parts.part_writer import PartWriter
from ortdeploy.parts.position import Position
from ortdeploy.plan.memory_notes import note_own_peak
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.reports.memory_told import told
from ortdeploy.results.results import JobResult, Status
from ortdeploy.streaming.member import Finished

if TYPE_CHECKING:
    from ortdeploy.facts.contents import FileContent


class JobRun:
    """One job of one run."""

    def __init__(self, context: JobContext) -> None:
        """Take what the job needs from outside; nothing is read or written yet."""
        step, opened = context.step, context.opened
        self._context = context
        self._stream = context.stream()
        self._writer = PartWriter(step, context.output.folder, provenance(context), context.roots)
        self._begun_part = BegunPart(context.output, step, self._writer, context.made_by.digest)
        self._memory = MemoryWatch(step.limits.memory, len(opened.sessions) + 1, trim=step.trim)
        self._report = JobReport(context, self._stream.members, JobStatistics({}, self._stream, self._writer))
        self._blocks: BlockMonitor | None = None
        self._loop: PartLoop | None = None
        self._live: Live | None = None
        self._contents: Iterable[FileContent] = ()

    def run(self) -> JobResult:
        """Run what is not committed yet. If the job ends early, the next run can continue it."""
        try:
            ending = carry_out(self._context, self._memory, self._work)
        finally:
            if self._live is not None:
                self._live.end()
        if ending.status is Status.NOTHING_TO_DO:
            return self._report.result(ending)
        return self._close(ending)

    def _work(self) -> Status:
        position = resume(self._context, self._begun_part)
        if position is None:
            return Status.NOTHING_TO_DO
        blocks, loop = self._take_up(position)
        self._announce(position, blocks)
        context = self._context
        state_dir = context.output.ledger.state_dir
        open_source = partial(open_rows, context.step, context.plan.folder, context.only, state_dir)
        loop.run(self._stream.run(open_source, position.done) if context.step.input.files else _no_blocks())
        self._withdraw()
        self._contents = loop.contents_of_rest()
        if context.step.input.unreadable:
            UnreadableFiles(context).note()
        if context.step.output.keep is not None:
            from ortdeploy.jobs.forgetting import forget_old_parts  # noqa: PLC0415  only for jobs with `keep`

            forget_old_parts(context)
        if self._context.output.upload is not None:
            self._context.output.upload.tidy()
        return Status.DONE

    def _withdraw(self) -> None:
        """Remove old rows of changed files, and rows made of upstream rows that no longer count, from their parts."""
        record = self._context.output.record()
        if record is not None and record.leaving:
            from ortdeploy.jobs.rerun import withdraw_rows  # noqa: PLC0415  only for files that changed

            withdraw_rows(self._context)
        if self._context.step.input.upstream is not None:
            from ortdeploy.jobs.upstream import withdraw_superseded  # noqa: PLC0415  only for jobs that read another one's rows

            withdraw_superseded(self._context)

    def _take_up(self, position: Position) -> tuple[BlockMonitor, PartLoop]:
        """Return the block counter and the part writer, set to the position where the job continues."""
        if position.statistics:
            self._report.statistics = JobStatistics(position.statistics, self._stream, self._writer)
        if position.state is not None:
            for member in self._stream.members:
                member.rows.runs.restore_state(position.state)
        self._blocks = BlockMonitor(self._context, position, self._stream, self._memory, self._report)
        self._loop = PartLoop(
            self._context,
            position,
            blocks=self._blocks,
            writer=self._writer,
            begun_part=self._begun_part,
            statistics=self._report.statistics,
            report=self._report,
        )
        return self._blocks, self._loop

    def _announce(self, position: Position, blocks: BlockMonitor) -> None:
        """Log and record that the job runs."""
        context, step = self._context, self._context.step
        self._report.done_before = min(position.done, step.output.committed_rows)  # a crashed process is of this run
        if step.batching.auto:
            context.output.ledger.remember_batch_size(context.output.name, step.batching.run_size)
        log.info("job.started", rows=step.input.rows, done=position.done, output=step.output.shown)
        context.observer.job_started(step.job, position.done, step.input.rows)
        self._live = blocks.live = Live(
            context.output.ledger.state_dir, context.output.name, step.input.rows, position.done, position.failed
        )

    def _close(self, ending: Ending) -> JobResult:
        """Write how the job ended into report, ledger and log. The counts come from the ledger."""
        if self._loop is not None:  # else the output may be another plan's, which is not touched
            try:
                self._loop.leave()
                ending = self._end(ending, self._loop.kept())
            except OrtdeployError as error:
                ending = failed_too(ending, self._context.output.folder, error)
        if ending.status is Status.DONE and not any(member.rows.halvings for member in self._stream.members):
            note_own_peak(self._context.plan, self._context.step, self._context.output.ledger.state_dir)
        result = self._report.result(ending, len(self._blocks.pending) if self._blocks is not None else 0)
        result = replace(result, memory=told(self._loop.kept()) if self._loop is not None else ())
        log_end(result)
        return result

    def _end(self, ending: Ending, statistics: Mapping[str, Any]) -> Ending:
        """Write the report, then the end into the ledger: killed in between, the next run finds the job unfinished.

        Measurements and digests of input files go into the ledger with the end, for each commit waits for the disk.
        """
        ended = now()
        try:
            self._report.write(ending, ended, statistics)
        except OSError as error:
            ending = failed_too(ending, self._context.output.folder, error)
        self._context.output.ledger.end(
            self._context.output.name, ending.status, ending.reason, ended, statistics, contents=self._contents
        )
        return ending


def _no_blocks() -> Iterator[Finished]:
    """Yield the blocks of a job without new files: all that it had to do was done to committed parts."""
    yield from ()
