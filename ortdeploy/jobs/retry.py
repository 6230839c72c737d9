"""Runs the failed rows of a job again, and puts those that give a result into their places in their parts.

Parts are written again as `replaced_rows` does it, so a row is in its part if and only if the ledger says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, StoppedError
from ortdeploy.events import log
from ortdeploy.jobs.ending import carry_out, failed_too
from ortdeploy.jobs.expected import EXPECTED, Expected, in_folder
from ortdeploy.jobs.failed_row_details import DeadLetters
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_report import log_end
from ortdeploy.jobs.locate_rows import Found, RowLocator, Segment
from ortdeploy.jobs.row_numbers import hold_place
from ortdeploy.jobs.rows_again import Again, RowsAgain
from ortdeploy.ledger.changes import as_spans
from ortdeploy.ledger.ledger import now
from ortdeploy.ledger.records import PART_DIGITS, FailedBefore, OutputRecord, Part
from ortdeploy.parts.committed import check_inputs, check_record, committed_parts
from ortdeploy.parts.replaced_rows import NewRows
from ortdeploy.plan.steps import RunJob
from ortdeploy.reports.report import report_due
from ortdeploy.results.results import JobResult, Status
from ortdeploy.results.rows import FailedRow
from ortdeploy.streaming.member import Finished


class RetryRun:
    """The failed rows of one job."""

    def __init__(self, context: JobContext) -> None:
        """Take what the job needs from outside; nothing is read or written yet."""
        self._context = context = replace(context.for_rewrite(), step=_without_dropping(context.step))
        self._step = context.step
        self._again = RowsAgain(context, "retry")
        self._report = self._again.report
        self._started = now()
        self._found = False  # a result of this job, whose report is renewed
        self._digits = PART_DIGITS
        self._done = 0
        self._left: Mapping[tuple[str, str], int] = {}
        self._statistics: Mapping[str, Any] | None = None  # of the job, with what its rows were compared with again
        self._asked: frozenset[int] | None = None  # the rows to run; None: all that have failed

    def run(self) -> JobResult:
        """Run the failed rows of every part. The status of the job itself does not change."""
        ending = carry_out(self._context, self._again.memory, self._work)
        if ending.status is Status.NOTHING_TO_DO:
            ending = replace(ending, reason=self._why_nothing())
        elif ending.status is Status.DONE:
            ending = replace(ending, reason=self._why_left())
        try:
            if self._found:
                if ending.status is not Status.NOTHING_TO_DO:
                    self._context.output.ledger.note_retried(
                        self._context.output.name, self._context.run_id, self._started, self._statistics
                    )
                self._report.write()
        except (OSError, OrtdeployError) as error:
            ending = failed_too(ending, self._context.output.folder, error)
        result = self._report.result(ending)
        log_end(result)
        return result

    def _why_nothing(self) -> str:
        """Say why no row is to be run, and what becomes of rows that have failed in a part that is not committed."""
        if self._step.letters is not None:
            return "no row of the file is to be run here"
        known = self._context.output.record()
        outside = 0 if known is None else known.failed_outside
        if not outside:
            return f"no row in {self._step.output.shown} has failed"
        rows = "1 failed row is" if outside == 1 else f"{outside:,} failed rows are"
        return f"{rows} in no committed part: repair or remove what failed, and apply goes on"

    def _why_left(self) -> str | None:
        """Say which rows stay failed and why, by the first file of them; None if all have run."""
        left = self._left
        if not left:
            return None
        (path, reason), rows = next(iter(left.items()))
        stay = "1 failed row of it has" if rows == 1 else f"{rows:,} failed rows of it have"
        others = len(left) - 1
        return f"{path}: {reason}. {stay} not run" + (f", and rows of {others:,} other files" if others else "")

    def _work(self) -> Status:
        """Run the failed rows of every part."""
        context = self._context
        if self._step.letters is not None:
            self._take_letters_over()
            if not self._asked and context.output.record() is None:
                return Status.NOTHING_TO_DO
        self._own_record()
        self._digits = context.recover().part_digits
        report_due(context.output.folder)
        attempts = context.output.ledger.failed_rows(context.output.name)
        wanted = {number: self._wanted(failed) for number, failed in attempts.items()}
        parts = [part for part in committed_parts(context.output) if wanted.get(part.number)]
        self._found = True  # a retry that was killed may have left a report from before
        if not parts:
            self._compare()  # a retry that was killed may not have done it
            tried = any(self._was_tried(one) for failed in attempts.values() for one in failed.values())
            return Status.DONE if tried or self._statistics is not None else Status.NOTHING_TO_DO
        self._places = RowLocator(context)
        self._left = self._places.left
        rows = [row for part in parts for row in wanted[part.number]]
        self._announce(rows, len(rows))
        for part in parts:
            if context.stop():
                raise StoppedError
            self._retry_part(part, attempts[part.number])
        self._compare()
        return Status.DONE

    def _compare(self) -> None:
        """Compare the rows of the last run again with what is expected of them, if they were. Raises OrtdeployError."""
        record = self._own_record()
        expected = Expected(self._step, record.statistics)
        if not expected.is_due_again(record):
            return
        try:
            expected.judge(record, in_folder(self._context.output.folder), again=True)
        finally:
            self._statistics = {**record.statistics, EXPECTED: expected.kept}

    def _take_letters_over(self) -> None:
        """Find out which rows to retry, and take over those of files that no run has read here."""
        self._check_stateless()
        if self._context.output.record() is not None:
            check_record(self._context.output, self._context.step.output, self._own_record())
        from ortdeploy.jobs.letters import Letters  # noqa: PLC0415  only if there are some

        self._asked = Letters(self._context).take_over()

    def _wanted(self, failed: Mapping[int, FailedBefore]) -> dict[int, FailedBefore]:
        """Return the failed rows that are to run: those that were asked for, and that this run has not tried yet."""
        return {
            row: one
            for row, one in failed.items()
            if (self._asked is None or row in self._asked) and not self._was_tried(one)
        }

    def _was_tried(self, row: FailedBefore) -> bool:
        """Return whether a row has failed in this run already.

        A run begins anew after its process was ended, or its provider failed. A row that was taken over from another
        machine in this run has no attempt yet.
        """
        return row.run == self._context.run_id and row.attempts > 0

    def _check_stateless(self) -> None:
        if self._step.pipeline is not None and self._step.pipeline.state:
            raise OrtdeployError("rows that hand state on cannot be run by themselves; apply with --new-run")

    def _own_record(self) -> OutputRecord:
        """Return what the ledger knows of the output. Raises OrtdeployError if its rows cannot be run again."""
        self._check_stateless()
        context, step = self._context, self._step
        known = context.output.record()
        is_there = step.output.removable or context.output.folder.exists()
        may_run = known is not None and (dict(known.identity) == dict(step.identity) or _continues(step))
        if known is None or not is_there or not may_run:
            raise OrtdeployError(f"{step.output.shown} holds no result of this job as it is now; apply it first")
        return known

    def _find(self, failed: Mapping[int, FailedBefore]) -> Found:
        """Return where the failed rows of a part are now; those that have had all their attempts are left out.

        The attempts are those with the present content of a file: after a repair, they begin anew.
        """
        most, wanted = self._step.errors.attempts, self._wanted(failed)
        over = {} if most is None else {row: one for row, one in wanted.items() if one.attempts >= most}
        unread = [row for row, one in wanted.items() if one.unreadable]
        if unread:
            self._places.leave(
                unread, failed[unread[0]].path, "the file could not be read; apply runs its rows once it has changed"
            )
        tired = [row for row, one in over.items() if row not in unread and not self._places.holds_else(one)]
        if tired:
            self._places.leave(tired, failed[tired[0]].path, f"attempts: {most} are behind it")
        wanted = {row: one for row, one in wanted.items() if row not in tired and row not in unread}
        if all(one.file_row is not None for one in wanted.values()):
            return self._places.find(wanted)
        return self._found_by_number(wanted)

    def _found_by_number(self, failed: Mapping[int, FailedBefore]) -> Found:
        """Return where rows are by their number in the job, if the ledger notes no file for them.

        So it is for rows from before ledger version 4. Every file must be unchanged. Raises OrtdeployError.
        """
        inputs = self._context.output.ledger.inputs(self._context.output.name)
        source = replace(self._step.input, files=tuple(one.state for one in inputs), first_row=0, rows_before=0)
        check_inputs(replace(self._step, input=source), self._context.plan.folder)
        return Found([Segment(states=source.files, first_row=0, rows=tuple(sorted(failed)))])

    def _announce(self, rows: Sequence[int], count: int) -> None:
        """Log that failed rows run, and which neighbours they run without if that matters."""
        step = self._step
        log.info("job.started", rows=count, done=0, output=step.output.shown)
        self._context.observer.job_started(step.job, 0, count)
        self._again.warn(rows, "failed rows are run once more, without those that stood beside them")

    def _retry_part(self, part: Part, failed: Mapping[int, FailedBefore]) -> None:
        """Run a part's failed rows, and put those that now give a result into the part."""
        found = self._find(failed)
        if not found.segments:
            return
        context = self._context

        def noted(finished: Finished, again: Again) -> None:
            self._hold_places(finished, failed, found)
            self._done += finished.block.count
            context.observer.rows_done(self._done, len(again.failed))

        again = self._again.run(part, found.segments, noted)
        context.output.ledger.note_repairs(context.output.name, found.repairs.values(), context.run_id)
        if again.rows:
            self._merge(part, failed, again)
        lost = sorted({*found.rows}.difference(again.rows, (row.row for row in again.failed)))
        if lost:
            self._places.leave(lost, failed[lost[0]].path, "the file has no such row any more, or it gives no result")
        letters = DeadLetters(context, found.states)
        context.output.ledger.note_failures(
            context.output.name,
            part.number,
            [_counted_on(row, failed[row.row]) for row in letters.completed(again.failed)],
        )

    def _hold_places(self, finished: Finished, failed: Mapping[int, FailedBefore], found: Found) -> None:
        """Raise OrtdeployError if a row of a file that is as it was is another one than that which failed."""
        block, repaired = finished.block, {state.path for state in found.repairs}
        now = {row: block.source(place) for place, row in enumerate(block.rows)}
        now |= {one.row: one.source for one in block.failed}
        for row, source in now.items():
            if failed[row].path not in {"", *repaired}:
                hold_place(row, failed[row].source, source)

    def _merge(self, part: Part, failed: Iterable[int], again: Again) -> None:
        """Put new rows into a part, or beside it."""
        rows = NewRows(spans=as_spans(again.rows), path=again.path, rows=tuple(again.rows), adds=True)
        one = self._context.replaced_rows(self._digits).replace(part, failed, rows)
        again.path.unlink(missing_ok=True)
        log.info("part.merged", part=part.number, rows=len(again.rows), file=one.files[0].file)


def _counted_on(row: FailedRow, before: FailedBefore) -> FailedRow:
    """Return a row that failed again with the attempts of before, unless its file has other content now."""
    is_repaired = None not in {row.sha256, before.sha256} and row.sha256 != before.sha256
    return row if is_repaired else replace(row, attempts=row.attempts + before.attempts)


def _without_dropping(step: RunJob) -> RunJob:
    """Return the job with short batches; rows at the input's end were dropped already."""
    last = "short" if step.batching.last == "drop" else step.batching.last
    return replace(step, batching=replace(step.batching, last=last))


def _continues(step: RunJob) -> bool:
    """Return whether this deployment may make rows of an output whose other rows another deployment made."""
    return step.output.on_upgrade == "continue"
