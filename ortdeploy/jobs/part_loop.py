"""Turns blocks into parts: each part is written, renamed, uploaded and committed.

A part that is not whole is never committed, so an interruption changes no byte of any part. Its finished rows are kept
for the next run, see `begun_part`.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError, StoppedError
from ortdeploy.events import log
from ortdeploy.facts.contents import FileContents
from ortdeploy.facts.data import FileStates
from ortdeploy.jobs.block_monitor import BlockMonitor
from ortdeploy.jobs.expected import EXPECTED, Expected, in_folder
from ortdeploy.jobs.input_contents import InputContents
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_report import JobReport
from ortdeploy.jobs.job_statistics import JobStatistics
from ortdeploy.ledger.records import Part, part_name
from ortdeploy.parts.begun_part import BegunPart, ErrorCapture
from ortdeploy.parts.committed import TakenBytes, check_files, check_inputs
from ortdeploy.parts.file_spans import sources_of_rows
from ortdeploy.parts.part_writer import PartWriter, Totals
from ortdeploy.parts.position import Position
from ortdeploy.parts.settled import kept_types
from ortdeploy.reports.memory_told import EXCESS, excess
from ortdeploy.reports.proven import doubt_of, in_doubt
from ortdeploy.sessions.evidence import DisagreementError
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.streaming.block_sizes import part_border
from ortdeploy.streaming.member import Finished
from ortdeploy.streaming.stall_watch import StuckRunError
from ortdeploy.units import format_size

SECONDS_BETWEEN_REPORTS = 5.0
"""Seconds between two reports of a running job, at least; a report follows a commit."""


_ENDS_BY_ITSELF = (MemoryError, ProviderFailedError, StoppedError, StuckRunError)
"""What ends a job whatever its input files hold."""

_CARRIED_AWAY = (
    "{} was carried away, or renamed, while the job ran. If the output is removable, committed rows stay committed, "
    "and the next apply continues after them"
)


class PartLoop:
    """Writes the parts of one job, one after the other."""

    def __init__(
        self,
        context: JobContext,
        position: Position,
        *,
        blocks: BlockMonitor,
        writer: PartWriter,
        begun_part: BegunPart,
        statistics: JobStatistics,
        report: JobReport,
    ) -> None:
        self._context = context
        self._step = context.step
        self._blocks = blocks
        self._writer = writer
        self._begun_part = begun_part
        self._statistics = statistics
        self._report = report
        self._reported = time.monotonic()
        self._part, self._digits = position.part, position.part_digits
        self._committed_state: str | None = position.statistics.get("state")
        self._contents = InputContents.for_job(context)
        self._taken = TakenBytes(context.output)
        self._doubt: dict[str, int] | None = None
        self._rest = FileStates.of([])
        self._expected = Expected(context.step, position.statistics)

    def run(self, finished: Iterator[Finished]) -> None:
        """Write blocks until the input ends. Raises what ends the job early."""
        blocks = self._blocks.count(finished)
        try:
            with closing(blocks):
                self._write_parts(blocks)
            if self._expected.is_due(self._context.output.record()):  # shards have made the last part
                self._compare()
                self._expected.committed()
        except (OSError, MemoryError, OrtdeployError) as error:
            self._context.files.check()  # numbers that changed under a session explain what it did
            if isinstance(error, DisagreementError):
                raise self._doubted(error) from error
            if isinstance(error, FileNotFoundError) and not self._context.output.folder.exists():
                raise OrtdeployError(_CARRIED_AWAY.format(self._step.output.shown)) from error
            if not isinstance(error, _ENDS_BY_ITSELF):
                self._check_rest()  # as it does if a file is not there, or holds something else
            raise
        self._check_rest()
        self._check_sum()

    def _check_rest(self) -> None:
        """Raise OvertakenError if a file that is in no part of this run is not as planned."""
        self._blocks.vouched.pass_over_rest()
        self._rest = self._blocks.vouched.new_others()
        check_inputs(self._step, self._context.plan.folder, only=self._rest)

    def contents_of_rest(self) -> FileContents:
        """Return what files hold that have no rows in a part of this run."""
        return FileContents.of(self._contents.of(self._rest))

    def leave(self) -> None:
        """Write the failed rows that belong to no committed part into the ledger, and where their files begin."""
        failed = self._blocks.pending
        if failed:
            begins = [(row.path, row.row - row.file_row, 0) for row in failed if row.file_row is not None]
            self._context.output.ledger.note_failures(self._context.output.name, self._part, failed, spans=begins)

    def _write_parts(self, blocks: Generator[Finished]) -> None:
        begun = self._begun_part.now
        if begun is not None:
            self._write_part(self._remaining_blocks(begun.part.start, begun.end, blocks))
        for first in blocks:
            of_part = self._part_from([first], blocks)
            del first  # the memory of what is written is for other blocks
            self._write_part(of_part)

    def _part_from(self, first: list[Finished], blocks: Iterator[Finished]) -> Iterator[Finished]:
        """Yield the one block in a list, which holds it no longer then, and the further blocks of its part."""
        start = first[0].block.start
        end = start + first[0].block.count
        yield first.pop()
        yield from self._remaining_blocks(start, end, blocks)

    def _remaining_blocks(self, start: int, end: int, blocks: Iterator[Finished]) -> Iterator[Finished]:
        """Yield the further blocks of the part that begins with the row `start`: those from the row `end` on."""
        border = part_border(self._step, start)
        while end < border and (block := next(blocks, None)) is not None:
            end += block.block.count
            yield block
            del block  # as above
        self._context.files.check()  # before the part gets its name

    def _write_part(self, blocks: Iterator[Finished]) -> None:
        """Write one part under a temporary name, rename it, commit it. Raises what ends the job early."""
        began = time.perf_counter()
        suffix, begun_part = SINKS[self._step.output.format].SUFFIX, self._begun_part
        name = part_name(self._part, self._digits, suffix, begun_part.revision)
        until = ErrorCapture(blocks)
        try:
            totals = self._writer.write(name, until, begun_part.now)
        except (OSError, MemoryError, OrtdeployError) as error:
            if until.error is None:
                raise
            begun_part.note_loss(self._part, str(error))
            raise until.error from error
        if until.error is not None:
            if isinstance(until.error, DisagreementError) and until.error.since is not None:
                self._writer.remove(name)
                begun_part.note_loss(self._part, "rows that were not compared may be wrong")
            else:
                self._keep(name, totals)
            raise until.error
        try:
            self._add_contents(totals)
        except OrtdeployError:
            self._writer.remove(name)
            raise
        part = replace(
            totals.part(self._part, name), deployment=self._context.made_by.digest, revision=begun_part.revision
        )
        self._check_disk(part, name)
        if self._expected and self._blocks.is_at_end():
            self._judge(part, name, totals)
        if self._step.output.removable and part.file is not None:
            begun_part.publish(part, name, totals, self._blocks.pending, begun_part.origin(self._writer.origin))
        else:
            self._writer.give_name(name, totals, name)
        try:
            self._send(part, totals)
        except OrtdeployError:
            self._writer.take_name(name, totals)
            self._keep(name, totals)
            raise
        self._commit(part, totals)
        if self._context.trace is not None:
            told = {"part": part.number, "rows": part.rows, "failed": part.failed, "file": part.file}
            self._context.trace.part(began, **told)

    def _judge(self, part: Part, name: str, totals: Totals) -> None:
        """Compare rows of this run with what is expected, before the last part is committed. Raises OrtdeployError."""
        try:
            self._compare((part, self._writer.waiting(name)))
        except OrtdeployError:
            self._keep(name, totals)
            raise

    def _compare(self, last: tuple[Part, Path] | None = None) -> None:
        """Compare rows with what is expected of them, of which the last may not be committed. Raises OrtdeployError."""
        output = self._context.output
        self._expected.judge(output.record(), in_folder(output.folder), last=last)

    def _doubted(self, error: DisagreementError) -> OrtdeployError:
        """Return an error that says which rows are in doubt: those committed or kept since the last good comparison."""
        record = self._context.output.record()
        done = 0 if record is None else record.begun.end if record.begun is not None else record.rows
        self._doubt = doubt_of(error, self._statistics.plain()["proven"], done)
        if self._doubt is None:
            return OrtdeployError(str(error))
        return OrtdeployError(f"{error}. {in_doubt(self._doubt, self._step.output.shown)}")

    def _add_contents(self, totals: Totals) -> None:
        """Add to a whole part what the files hold that it is made of and that their source has not read whole.

        Raises OrtdeployError if one of these is not as planned: rows of it in this part may be of another state.
        """
        totals.add_contents(self._contents.of(self._check_read(totals)))

    def _check_read(self, totals: Totals) -> FileStates:
        """Return the files that were passed since the last part and for which nobody vouches; all are as planned."""
        vouched, path = self._blocks.vouched, totals.last_file
        if path is not None:
            vouched.pass_over_to(path)
        passed = vouched.new_others()
        check_inputs(self._step, self._context.plan.folder, only=passed)
        if path is not None:
            check_inputs(self._step, self._context.plan.folder, only=vouched.still_read(path))
        return passed

    def _keep(self, name: str, totals: Totals) -> None:
        """Keep the finished rows of a part for the next run, unless a file of them has changed meanwhile."""
        self._context.files.check()
        try:
            totals.add_contents(self._contents.of(self._check_read(totals)))
        except OrtdeployError as error:
            self._begun_part.note_loss(self._part, str(error))
            self._writer.remove(name)
            return
        origin = self._begun_part.origin(self._writer.origin)
        self._blocks.pending = self._begun_part.keep(self._part, name, totals, self._blocks.pending, origin)

    def _send(self, part: Part, totals: Totals) -> None:
        """Upload a part before it is committed. Raises OrtdeployError."""
        if part.file is None or self._context.output.upload is None:
            return
        from ortdeploy.sinks.row_files import file_names  # noqa: PLC0415  only for stores

        sources = sources_of_rows(self._step.input.format, totals.spans)
        names = file_names(self._step.output.files, range(part.start, part.end), sources)
        self._context.output.send({part.file, *names})

    def _check_disk(self, part: Part, name: str) -> None:
        """Raise OrtdeployError if a part would exceed the job's disk limit; it gets no name."""
        limit = self._step.limits.disk
        if limit is None or part.file is None:
            return
        taken = self._taken.with_file(part.bytes, limit)
        if taken > limit:
            self._writer.remove(name)
            raise OrtdeployError(
                f"the output would take {format_size(taken)} and may take {format_size(limit)}; its last part is not "
                "committed. Raise limits: {disk: …}, or write fewer columns"
            )

    def _commit(self, part: Part, totals: Totals) -> None:
        begin = time.perf_counter()
        if self._blocks.state is not None:
            from ortdeploy.pipelines.state import pack_state  # noqa: PLC0415  few pipelines have a state

            self._committed_state = pack_state(self._blocks.state)
        self._expected.committed()
        self._context.output.ledger.commit_part(
            self._context.output.name,
            part,
            self._blocks.pending,
            provenance=self._begun_part.origin(self._writer.origin),
            statistics=self.kept(),
            spans=totals.spans,
            contents=totals.contents,
        )
        self._taken.add(part.bytes)
        self._begun_part.committed()
        self._begun_part.revision = 0
        self._statistics.committed(self._blocks.done, time.perf_counter() - begin)
        self._blocks.pending = []
        self._part += 1
        text = self._context.native_text()
        if text:
            log.debug("session.printed", model=self._step.model, text=text)
        if time.monotonic() - self._reported > SECONDS_BETWEEN_REPORTS:
            self._report.write()
            self._reported = time.monotonic()
        log.info("part.committed", part=part.number, rows=part.rows, failed=part.failed, file=part.file)

    def kept(self) -> dict[str, Any]:
        """Return what the ledger keeps with a commit: statistics, thread layout, types, the state after the last row.

        Rows in doubt are noted too.
        """
        kept = {
            "state": self._committed_state,
            "layout": self._context.opened.layout,
            "doubt": self._doubt,
            EXPECTED: self._expected.kept or None,
            EXCESS: excess(self._step.limits.forecast, self._statistics.memory_before, self._statistics.highest_memory)
            or None,
            **kept_types(self._step),
        }
        return {**self._statistics.plain(), **{name: value for name, value in kept.items() if value is not None}}

    def _check_sum(self) -> None:
        """Check that rows in = committed + failed + skipped, that all parts exist, and the whole error budget."""
        done, rows = self._blocks.done, self._step.input.rows
        record = self._context.output.record()
        accounted = record.committed + record.failed_in_parts + record.skipped + record.withdrawn if record else 0
        if done != accounted or rows not in {None, done}:
            raise OrtdeployError(
                f"the input has {rows or done} rows and {accounted} are accounted for; "
                "did the input change while it was read?"
            )
        check_files(self._context.output, self._context.step.output, " while the job ran")
        self._blocks.budget.judge(done)
