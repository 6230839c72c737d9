"""Runs the rows of changed input files again, and puts the results into their parts.

A file with as many rows as before keeps its row numbers: part by part, new results replace the old ones. A file with
another number of rows counts as a new file, whose rows come after all others; once they are committed, the old rows
are removed from their parts. The ledger notes each step before it is done, so that the next run continues after a kill.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, StoppedError
from ortdeploy.events import log
from ortdeploy.facts.data import FileState, KnownFile
from ortdeploy.feeds.row_sources import open_rows
from ortdeploy.jobs.ending import carry_out, failed_too
from ortdeploy.jobs.error_budget import ErrorBudget, earlier_of
from ortdeploy.jobs.failed_row_details import DeadLetters
from ortdeploy.jobs.input_contents import InputContents
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_report import log_end
from ortdeploy.jobs.locate_rows import Segment
from ortdeploy.jobs.reconcile_inputs import cut_off, plan_again
from ortdeploy.jobs.rows_again import RowsAgain
from ortdeploy.ledger.changes import as_spans, rows_in
from ortdeploy.ledger.records import ChangedFiles, OutputRecord, Part, Rerun, Span
from ortdeploy.parts.committed import check_inputs
from ortdeploy.parts.output_owner import write_marker
from ortdeploy.parts.replaced_rows import NewRows
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.results import JobResult, Status
from ortdeploy.sources.file_selection import rows_before


class RerunRun:
    """The changed files of one job. `step` is the rest of the job, which runs after them."""

    def __init__(self, context: JobContext) -> None:
        """Take what the job needs from outside; nothing is read or written yet."""
        self._context = context.for_rewrite()
        self._again = RowsAgain(self._context, "rerun")
        self._report = self._again.report
        self._taken_up = False
        self.step = context.step

    def run(self) -> JobResult | None:
        """Run the rows again; return how the job ended, or None if it continues with new files."""
        ending = carry_out(self._context, self._again.memory, self._work)
        if ending.status is Status.DONE:
            return None
        try:
            if self._taken_up:
                self._context.output.ledger.end(self._context.output.name, ending.status, ending.reason)
                self._report.write()
        except (OSError, OrtdeployError) as error:
            ending = failed_too(ending, self._context.output.folder, error)
        result = self._report.result(ending)
        log_end(result)
        return result

    def _work(self) -> Status:
        context = self._context
        changes = self._sorted(self._own_record())
        known = self._take_up(changes)
        context.output.ledger.note_contents(
            context.output.name, InputContents.for_job(context).of(context.step.input.rerun)
        )
        parts = [part for part in known.parts if any(_rows_of(one, part) for one in known.reruns)]
        self._announce(known, parts)
        for part in parts:
            if context.stop():
                raise StoppedError
            self._run_part(known, part)
        return Status.DONE

    def _own_record(self) -> OutputRecord:
        """Recover the output, and return what the ledger knows of it. Raises OrtdeployError."""
        context, step = self._context, self._context.step
        known = context.output.record()
        if known is None or (dict(known.identity) != dict(step.identity) and step.output.on_upgrade != "continue"):
            raise plan_again(step)
        return cut_off(context, context.recover())

    def _sorted(self, known: OutputRecord) -> ChangedFiles:
        """Return what becomes of the changed files. Raises OrtdeployError if one cannot be counted."""
        inputs = self._context.output.ledger.inputs(known.output)
        files = {one.state.path: one for one in inputs}
        changed = self._context.step.input.rerun
        through = _through(inputs)
        again: list[FileState] = []
        anew: list[FileState] = []
        for state in changed:
            one = files.get(state.path)
            if one is None or (one.done and one.span is None):
                raise OrtdeployError(f"which rows {state.path} has is not noted; apply with --new-run")
            is_whole = one.span is not None and (one.done or state.path in through)
            is_alike = is_whole and one.span is not None and self._count(state) == one.span[1]
            (again if is_alike else anew).append(state)
        check_inputs(self._reading(changed), self._context.plan.folder)
        within = any(not files[state.path].done for state in changed)
        return ChangedFiles(
            again=tuple(again),
            anew=tuple(anew),
            through=tuple(through) if within else (),
            first_row=known.rows if within else None,
        )

    def _count(self, state: FileState) -> int:
        """Return how many rows a file has now. Raises OrtdeployError if it cannot be read."""
        sizes = repeat(self._context.step.batching.read_size)
        with open_rows(self._reading([state]), self._context.plan.folder) as source:
            return sum(block.count for block in source.blocks(0, sizes))

    def _reading(self, states: Sequence[FileState]) -> RunJob:
        step = self._context.step
        return replace(step, input=replace(step.input, files=tuple(states), first_row=0, rows_before=0))

    def _take_up(self, changes: ChangedFiles) -> OutputRecord:
        """Note in the ledger what is to be done; return what the ledger knows then."""
        context, step = self._context, self._context.step
        context.output.ledger.begin(
            context.output.name, made_by=context.made_by, job=step.job, run=context.run_id, gone=step.input.gone
        )
        context.output.ledger.take_up_changes(context.output.name, changes, context.run_id)
        self._taken_up = True
        write_marker(context.output.folder, context.output.ledger.state_dir, context.plan.deployment, step.job)
        known = context.output.record()
        if known is None:
            raise OrtdeployError(f"the ledger does not know {step.output.shown} any more")
        inputs = context.output.ledger.inputs(context.output.name)
        unfinished = {one.state.path: one.state for one in inputs if not one.done}
        now = {state.path: state for state in (*step.input.files, *changes.anew)}
        is_through = {one.state.path for one in inputs if one.done}.intersection(changes.through)
        new = [state for path, state in now.items() if path not in unfinished and path not in is_through]
        files = (*(now.get(path, state) for path, state in unfinished.items()), *new)
        source = replace(
            step.input,
            files=files,
            rerun=(),
            first_row=known.first_row,
            rows_before=rows_before(files, inputs, known.first_row),
            rows=None if changes.anew or changes.through else step.input.rows,
        )
        self.step = replace(step, input=source)
        return known

    def _announce(self, known: OutputRecord, parts: Sequence[Part]) -> None:
        """Log that rows run again, and which neighbours they run without if that matters."""
        step = self._context.step
        rows = [row for part in parts for one in known.reruns for row in _rows_of(one, part)]
        log.info("job.rerun", files=len(step.input.rerun), rows=len(rows), output=step.output.shown)
        self._again.warn(rows, "rows of changed files are run without those that stood beside them")

    def _run_part(self, known: OutputRecord, part: Part) -> None:
        """Run the rows of changed files that a part holds, and replace them in it."""
        began = time.perf_counter()
        context, segments = self._context, list(_segments(known.reruns, part))
        again = self._again.run(part, segments)
        states = [state for segment in segments for state in segment.states]
        wanted = [row for segment in segments for row in segment.rows]
        if len(wanted) != len(again.rows) + len(again.failed) + len(again.skipped):
            raise OrtdeployError(f"{states[0].path} has other rows than when they were counted; it changed meanwhile")
        failed_before = context.output.ledger.failed_rows(context.output.name).get(part.number, {})
        self._judge(known, len({*failed_before}.intersection(wanted)), len(again.failed))
        rows = NewRows(
            spans=as_spans(wanted),
            path=again.path if again.rows else None,
            rows=tuple(again.rows),
            failed=tuple(DeadLetters(context, states).completed(again.failed)),
            skipped=tuple(again.skipped),
            through=part.end,
        )
        _replace(context, known, part, failed_before, rows)
        again.path.unlink(missing_ok=True)
        if context.trace is not None:
            context.trace.part(began, part=part.number, rows=len(wanted), failed=len(again.failed), file=part.file)

    def _judge(self, known: OutputRecord, failed_before: int, failed: int) -> None:
        """Raise BudgetError, before anything is replaced, if more rows of changed files would have failed than may."""
        if failed > failed_before:
            letters = self._context.output.ledger.failed_rows(known.output).values()
            rows = sorted(chain.from_iterable(letters))
            before = sum(bisect_left(rows, one.end) - bisect_left(rows, one.first_row) for one in known.reruns)
            earlier = replace(earlier_of(self._context.step, rows), failed=0)
            budget = ErrorBudget(self._context.step, before - failed_before + failed, earlier=earlier)
            budget.judge(self._context.step.input.first_row + sum(one.rows for one in known.reruns))


def _through(inputs: Sequence[KnownFile]) -> list[str]:
    """Return the files of an unfinished run whose rows are all committed, because rows of later files are."""
    unfinished = [one for one in inputs if not one.done]
    begun = [place for place, one in enumerate(unfinished) if one.span is not None and one.span[1]]
    return [one.state.path for one in unfinished[: begun[-1] if begun else 0]]


def _rows_of(one: Rerun, part: Part) -> range:
    """Return the rows of a changed file that a part holds and that have not run again yet."""
    return range(max(one.through, part.start), min(one.end, part.end))


def _segments(reruns: Sequence[Rerun], part: Part) -> Iterator[Segment]:
    """Yield the rows of a part that run again; files that follow each other are one segment."""
    group: list[tuple[Rerun, range]] = []
    for one in (one for one in reruns if _rows_of(one, part)):
        if group and one.first_row != group[-1][0].end:
            yield _segment(group)
            group = []
        group.append((one, _rows_of(one, part)))
    if group:
        yield _segment(group)


def _segment(group: Sequence[tuple[Rerun, range]]) -> Segment:
    rows = tuple(row for _, some in group for row in some)
    return Segment(states=tuple(one.state for one, _ in group), first_row=group[0][0].first_row, rows=rows)


def withdraw_rows(context: JobContext) -> None:
    """Remove the old rows of changed files from their parts, now that the new ones are committed."""
    record = context.output.record()
    if record is not None and record.leaving:
        take_out(context, record, record.leaving)
        context.output.ledger.end_leaving(context.output.name)


def take_out(context: JobContext, record: OutputRecord, spans: Sequence[Span]) -> None:
    """Remove rows from their parts, unless they were removed before; other parts are not touched."""
    failed = context.output.ledger.failed_rows(context.output.name)
    for part in record.parts:
        left = {*rows_in(part.withdrawn, part.start, part.end)}
        goes = [row for row in rows_in(spans, part.start, part.end) if row not in left]
        if goes:
            new = NewRows(spans=as_spans(goes), withdrawn=True)
            _replace(context, record, part, failed.get(part.number, ()), new)


def _replace(context: JobContext, record: OutputRecord, part: Part, failed: Iterable[int], new: NewRows) -> None:
    one = context.replaced_rows(record.part_digits).replace(part, failed, new)
    rows = sum(rows for _, rows in new.spans)
    log.info("part.replaced", part=part.number, rows=rows, file=one.part.file)
