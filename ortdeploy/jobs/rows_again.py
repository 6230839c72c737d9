"""Runs rows of committed parts again, for `rerun` and `retry`, which put the results into these parts."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import StoppedError
from ortdeploy.events import log
from ortdeploy.files.atomic import TEMPORARY
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_report import JobReport
from ortdeploy.jobs.job_statistics import JobStatistics
from ortdeploy.jobs.locate_rows import Segment, open_segments
from ortdeploy.jobs.provenance import provenance
from ortdeploy.ledger.records import Part
from ortdeploy.parts.committed import check_inputs
from ortdeploy.parts.part_writer import PartWriter
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.results.rows import FailedRow
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.streaming.member import Finished


class Again(Struct):
    """What became of the rows of a part that ran again: those with results are in the file at `path`."""

    path: Path
    rows: list[int] = field(default_factory=list)
    failed: list[FailedRow] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)

    def note(self, finished: Finished) -> None:
        """Add a block."""
        missing = {row.row for row in finished.outcome.failed}.union(finished.outcome.skipped)
        self.rows += [row for row in finished.block.rows if row not in missing]
        self.failed += finished.outcome.failed
        self.skipped += finished.outcome.skipped


class RowsAgain:
    """Runs rows of one job again; `report` is that of the job, and `memory` its limit."""

    def __init__(self, context: JobContext, what: str) -> None:
        """Take what the job needs from outside; files are named by `what` runs. Nothing is read or written yet."""
        step = context.step
        self._context, self._what = context, what
        self._writer = PartWriter(step, context.output.folder, provenance(context), context.roots)
        self.memory = MemoryWatch(step.limits.memory, len(context.opened.sessions) + 1, trim=step.trim)
        stream = context.stream()
        self.report = JobReport(context, stream.members, JobStatistics({}, stream, self._writer))

    def warn(self, rows: Sequence[int], reason: str) -> None:
        """Log that rows run without those that stood beside them, if that matters."""
        models = list(self._context.step.row_check.declared)
        if models and rows:
            log.warning("batch.cut_anew", first=min(rows), last=max(rows), models=models, reason=reason)

    def run(
        self, part: Part, segments: Sequence[Segment], on_block: Callable[[Finished, Again], None] | None = None
    ) -> Again:
        """Run rows of a part. Raises OrtdeployError if their files change meanwhile, StoppedError."""
        context, step, stream = self._context, self._context.step, self._context.stream()
        self.report.members = stream.members
        suffix = SINKS[step.output.format].SUFFIX
        again = Again(context.output.folder / f".{self._what}-{part.number:05d}{suffix}{TEMPORARY}")

        def noted(finished: Finished) -> Finished:
            again.note(finished)
            if on_block is not None:
                on_block(finished, again)
            return finished

        read = partial(open_segments, step, context.plan.folder, segments, context.output.ledger.state_dir)
        self._writer.write_file(again.path, map(noted, stream.run(read, segments[0].rows[0])))
        if stream.stopped:
            raise StoppedError
        context.files.check()  # before what was found goes into the part
        states = tuple(dict.fromkeys(state for segment in segments for state in segment.states))
        check_inputs(replace(step, input=replace(step.input, files=states)), context.plan.folder)
        return again
