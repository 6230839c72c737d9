"""Notes input files that cannot be read: each is one failed row, so that it does not keep the others from running.

Such files are noted when all others have run, in one transaction, and the run ends after that. A run that is killed
before has noted nothing, and the next plan finds the files again; one that is killed after is ended by the next. The
row of a file belongs to a part without a file. When the file changes, it is run like a changed file with another number
of rows: its failed row leaves its part, and all rows that it holds then come after all others.
"""

from collections.abc import Sequence
from itertools import count

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import KnownFile, UnreadableFile
from ortdeploy.jobs.error_budget import ErrorBudget, failed_before
from ortdeploy.jobs.failed_row_details import DeadLetters
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger.records import UNREADABLE, OutputRecord, failed_part
from ortdeploy.results.rows import Block, FailedRow
from ortdeploy.sources.files import file_states, full_path


class UnreadableFiles:
    """The unreadable files of one job, in the state in which the plan has found them."""

    def __init__(self, context: JobContext) -> None:
        """Take the job; nothing is noted yet."""
        self._context = context
        files = [one for one in context.step.input.unreadable if self._is_as_planned(one)]
        known = {one.state.path: one for one in context.output.ledger.inputs(context.output.name)} if files else {}
        self._again = [(one, before) for one in files if (before := known.get(one.path)) and before.unreadable]
        again = {one.path for one, _ in self._again}
        self._new = [one for one in files if one.path not in again and not _is_noted(one, known)]

    def _is_as_planned(self, file: UnreadableFile) -> bool:
        """Return whether a file is as it was when it could not be read; another one is the next run's."""
        folder = self._context.plan.folder
        try:
            return file_states([full_path(folder, file.path)], folder) == (file.state,)
        except OrtdeployError:
            return False

    def _judge(self, record: OutputRecord) -> None:
        rows = self._rows(record, self._new)
        if rows:
            earlier = failed_before(self._context.output.ledger, record.output, self._context.step)
            budget = ErrorBudget(self._context.step, record.failed, earlier=earlier)
            budget.note(Block(start=record.rows, count=len(rows), rows=(), columns={}, failed=rows), rows)
            budget.judge(record.rows + len(rows))

    def note(self) -> None:
        """Note the files in the ledger, as all others are done.

        Raises BudgetError, before any is noted, if more rows would have failed with them than may.
        """
        context, record = self._context, self._record()
        self._judge(record)
        letters = DeadLetters(context, [one.state for one in context.step.input.unreadable])
        for file, before in self._again:
            self._note_again(record, file, before, letters)
        if not self._new:
            return
        rows = letters.completed(self._rows(record, self._new))
        part = failed_part(record, len(rows), context.made_by.digest)
        context.output.ledger.set_aside(context.output.name, part, rows, [one.state for one in self._new])
        for row in rows:
            log.warning("files.unreadable", source=row.path, row=row.row, reason=row.message)

    def _note_again(self, record: OutputRecord, file: UnreadableFile, before: KnownFile, letters: DeadLetters) -> None:
        if before.span is None or before.is_known(file.state):
            return
        row = before.span[0]
        part = next(one.number for one in record.parts if one.start <= row < one.end)
        (failure,) = letters.completed([_failed_row(file, row)])
        self._context.output.ledger.set_aside_again(self._context.output.name, part, failure, file.state)
        log.warning("files.unreadable", source=failure.path, row=row, reason=failure.message)

    @staticmethod
    def _rows(record: OutputRecord, files: Sequence[UnreadableFile]) -> list[FailedRow]:
        return [_failed_row(one, row) for row, one in zip(count(record.rows), files, strict=False)]

    def _record(self) -> OutputRecord:
        record = self._context.output.record()
        if record is None:
            raise OrtdeployError(f"the ledger does not know {self._context.step.output.shown} any more")
        return record


def _is_noted(file: UnreadableFile, known: dict[str, KnownFile]) -> bool:
    """Return whether another run has accounted for a file in this state since the plan was made."""
    before = known.get(file.path)
    return before is not None and before.is_known(file.state)


def _failed_row(file: UnreadableFile, row: int) -> FailedRow:
    return FailedRow(row=row, source=file.path, stage="read", code=UNREADABLE, message=file.reason, path=file.path)
