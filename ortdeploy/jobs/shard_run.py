"""Runs one shard of a job: those of its parts that belong to the shard and are not yet decided, one after the other.

Instead of a shard's list, a driver may say which parts to make. The ledger is only read. Any number of shards may run
at the same time, even the same shard twice.
"""

import platform
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, StoppedError
from ortdeploy.events import log
from ortdeploy.feeds.row_sources import open_rows
from ortdeploy.files.gate import PathGuard, decides
from ortdeploy.files.shared_place import beside
from ortdeploy.files.urls import parse_url
from ortdeploy.jobs.begin_shared_plan import Beginning
from ortdeploy.jobs.block_monitor import BlockMonitor
from ortdeploy.jobs.doubt import OwnParts
from ortdeploy.jobs.ending import carry_out
from ortdeploy.jobs.environment_check import compare_with_first, facts_of_this_worker, processor_of
from ortdeploy.jobs.expected import counts_of
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_report import JobReport, log_end
from ortdeploy.jobs.job_statistics import JobStatistics
from ortdeploy.jobs.provenance import provenance
from ortdeploy.jobs.shared_plan import decisions_of, first_number, standing_record
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.parts.assigned_parts import AssignedParts
from ortdeploy.parts.commit_log import ClosedError, CommitLog
from ortdeploy.parts.committed import check_inputs, states_of
from ortdeploy.parts.part_writer import PartWriter
from ortdeploy.parts.position import Position
from ortdeploy.parts.receipt import Receipt
from ortdeploy.parts.settled import kept_types, with_settled_types
from ortdeploy.plan.part_table import PartTable, PlannedPart, Shard, part_table
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.leaks import GROWTH
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.reports.memory_told import told
from ortdeploy.results.results import JobResult, Status
from ortdeploy.sessions.evidence import DisagreementError
from ortdeploy.units import format_size


def why_not_shared(step: RunJob) -> str | None:
    """Return why several processes cannot share a job's parts; None if they can."""
    left_to_one = _why_left_to_one_machine(step)
    if left_to_one is not None:
        return left_to_one
    if step.pipeline is not None and step.pipeline.state:
        return "each row takes the state of the one before"
    if step.output.upload is not None and not decides(step.output.upload):
        scheme = parse_url(step.output.upload).scheme
        return (
            f"{scheme} has no way to create a file that only the first of two processes gets; take a store or a folder"
        )
    if step.input.upstream is not None:
        return f'it reads the rows of job "{step.input.upstream.job}", and which these are only that job tells'
    if step.batching.auto:
        return "batch: {size: auto} is measured anew by each process; write the size that tune finds"
    if step.input.rows is None:
        return f"how many rows {step.input.format} input has is known only when it was read"
    return None


def _why_left_to_one_machine(step: RunJob) -> str | None:
    """Return why one machine must do what is to be done first; None if shards may begin at once."""
    if step.retry:
        return "retry runs on one machine"
    if step.output.aside is not None:
        return (
            f"it starts over, and one machine keeps what is there as {step.output.aside}: apply the plan without "
            "--shard. Or move the output away, and make the plan without --new-run"
        )
    if step.input.rerun:
        return f"{step.input.rerun[0].path} has changed and its rows run again; apply once without --shard"
    if step.output.changed:
        return "parts of two deployments are made on one machine; apply once without --shard"
    return None


def begun(plan: Plan, step: RunJob, ledger: Ledger, shard: Shard | AssignedParts, ours: Mapping[str, Any]) -> CommitLog:
    """Begin a job's parts, or go on with them, as one of several processes; `ours` are the facts of this worker.

    Raises ClosedError if all are made, RefusedError if this process cannot make any, OrtdeployError, OSError.
    """
    check_inputs(step, plan.folder, PathGuard((plan.folder, *plan.roots)))
    folder = Path(plan.folder) / step.output.path
    record = ledger.output(ledger.key(folder))
    decisions = decisions_of(plan, step, record, folder)
    with _still_there(decisions):
        if isinstance(shard, Shard):
            beginning = Beginning(plan=plan, step=step, state_dir=ledger.state_dir, decisions=decisions)
            beginning.run(partial(compare_with_first, decisions, ours, str(shard)))
        else:  # a driver has begun the plan, and compares its workers itself
            decisions.begin(known=record is not None)
    return decisions


@contextmanager
def _still_there(decisions: CommitLog) -> Iterator[None]:
    """Say so if a file is missing because the output was put aside for a new run. Raises OrtdeployError, OSError."""
    try:
        yield
    except FileNotFoundError:
        decisions.check_there()
        raise


class ShardRun:
    """One shard of one job, or what a driver tells this process to make of it."""

    def __init__(self, context: JobContext, shard: Shard | AssignedParts) -> None:
        """Take what the job needs from outside; nothing is read or written yet."""
        self._context = context
        self._shard = shard
        self._step = context.step
        self._memory = MemoryWatch(self._step.limits.memory, len(context.opened.sessions) + 1, trim=self._step.trim)
        self._counts = {"committed": 0, "failed": 0, "skipped": 0}
        self._failed_before = 0
        self._rows_done = 0
        self._seconds = 0.0
        self._dropped: tuple[str, ...] = ()
        self._told: tuple[str, ...] = ()
        self._ran_parts = 0
        self._own = OwnParts()
        self._processor = ""

    def run(self) -> JobResult:
        """Run the shard's undecided parts; publish those that others decided but did not publish."""
        ending = carry_out(self._context, self._memory, self._work)
        result = JobResult(
            job=self._step.job,
            status=ending.status,
            output=self._step.output.shown,
            seconds=self._seconds,
            reason=ending.reason,
            provider_failed=ending.provider_failed,
            dropped=self._dropped,
            memory=self._told,
            stuck=ending.stuck,
            refused=ending.refused,
            committed=self._counts["committed"],
            failed=self._counts["failed"],
            skipped=self._counts["skipped"],
        )
        log_end(result)
        return result

    def _work(self) -> Status:
        step, context = self._step, self._context
        record = context.output.record()
        ours = facts_of_this_worker(context.plan, step)
        self._processor = processor_of(ours)
        try:
            decisions = begun(context.plan, step, context.output.ledger, self._shard, ours)
            with _still_there(decisions):
                table = part_table(step, first_number(record, step))
                record = standing_record(record, step, table, decisions)
                self._step = with_settled_types(step, record, _files(record, decisions))
                in_ledger = {part.number for part in record.parts} if record is not None else set()
                for part in self._parts(table, decisions, in_ledger):
                    self._run_part(decisions, part)
        except ClosedError:
            return Status.DONE if self._ran_parts else Status.NOTHING_TO_DO
        check_inputs(step, context.plan.folder)
        return Status.DONE if self._ran_parts else Status.NOTHING_TO_DO

    def _parts(self, table: PartTable, decisions: CommitLog, in_ledger: Collection[int]) -> Iterable[PlannedPart]:
        """Return the parts to make."""
        shown, observer = self._step.output.shown, self._context.observer
        if isinstance(self._shard, AssignedParts):
            log.info("shard.started", shard=str(self._shard), parts=len(table), left=None, output=shown)
            return self._shard.parts(table)
        mine = [part for part in table if self._shard.takes(part.number)]
        left = []
        for part, receipt in decisions.all_rolled_forward(one for one in mine if one.number not in in_ledger):
            if receipt is None:
                left.append(part)
            else:
                self._failed_before += receipt.part.failed
        log.info("shard.started", shard=str(self._shard), parts=len(mine), left=len(left), output=shown)
        observer.job_started(self._step.job, 0, sum(len(part.rows) for part in left))
        return left

    def _run_part(self, decisions: CommitLog, part: PlannedPart) -> None:
        """Run a part, decide, publish. Raises what ends the shard early."""
        if self._context.stop():
            raise StoppedError
        earlier = decisions.rolled_forward(part)
        if earlier is not None:  # another process was quicker
            self._failed_before += earlier.part.failed
            self._rows_done += len(part.rows)
            self._context.observer.rows_done(self._rows_done, self._failed_before + self._counts["failed"])
            self._tell(part, earlier, made_here=False)
            return
        try:
            receipt = self._made(decisions, part)
        except DisagreementError as error:
            raise self._own.doubted(error, decisions, self._step) from error
        stands = decisions.decide(part, receipt)
        decisions.publish(stands)
        self._ran_parts += 1
        if stands is receipt:
            self._own.add(receipt)
        for name in self._counts:
            self._counts[name] += getattr(stands.part, name)
        self._rows_done += len(part.rows)
        log.info(
            "part.decided",
            part=part.number, rows=stands.part.rows, failed=stands.part.failed, file=stands.part.file,
            won=stands is receipt,
        )  # fmt: skip
        self._tell(part, stands, made_here=stands is receipt)

    def _tell(self, part: PlannedPart, receipt: Receipt, *, made_here: bool) -> None:
        """Tell a driver that a part is decided."""
        if isinstance(self._shard, AssignedParts):
            self._shard.decided(part, receipt, made_here=made_here)

    def _made(self, decisions: CommitLog, part: PlannedPart) -> Receipt:
        """Run the rows of a part into a staged file; if anything is raised, the file is deleted."""
        step = self._step
        observer = _Shifted(self._context.observer, self._rows_done - part.start)
        context = replace(self._context, step=step, observer=observer)
        stream = context.stream()
        with decisions.staging(part) as path:
            writer = PartWriter(step, beside(path), provenance(context), context.roots)
            statistics = JobStatistics({}, stream, writer)
            report = JobReport(context, stream.members, statistics)
            position = Position(done=part.start, part=part.number, failed=self._failed_before + self._counts["failed"])
            blocks = BlockMonitor(context, position, stream, self._memory, report)
            open_source = partial(
                open_rows, step, context.plan.folder, part.rows, context.output.ledger.state_dir, told=True
            )
            try:
                totals = writer.write_file(path, blocks.count(stream.run(open_source, part.start)))
                read = states_of(step.input.files, {path for path, *_ in totals.spans})
                check_inputs(step, context.plan.folder, only=read)  # before the part is decided
                self._check(decisions, part, blocks.done, totals.written.bytes if totals.written else 0)
            finally:
                self._seconds += statistics.seconds
                self._told = told({GROWTH: statistics.growth}) or self._told
                self._dropped = tuple(member.name for member in stream.members if member.failure is not None)
            counts = counts_of(step, path if totals.written else None)
            marks = decisions.stage(path)
        made = replace(totals.part(part.number, decisions.name(part)), deployment=context.made_by.digest)
        layout = {} if context.opened.layout is None else {"layout": context.opened.layout}
        return Receipt(
            part=made,
            staged=None if made.file is None else path.name,
            failed=tuple(blocks.pending),
            origin=dict(writer.origin),
            statistics={**statistics.plain(), **kept_types(step), **layout, **counts},
            ran=report.ran(),
            worker=self._worker(),
            spans=totals.spans,
            marks=marks,
        )

    def _check(self, decisions: CommitLog, part: PlannedPart, done: int, size: int) -> None:
        """Raise OrtdeployError if a part is not what was planned, or takes too much of the disk."""
        self._context.files.check()
        if done != part.end:
            raise OrtdeployError(
                f"part {part.number} has the rows {part.start} to {part.end - 1} and the input ended behind row "
                f"{done - 1}; did it change while it was read?"
            )
        limit = self._step.limits.disk
        if limit is None:
            return
        taken = size + decisions.taken()
        if taken > limit:
            raise OrtdeployError(
                f"the output would take {format_size(taken)} and may take {format_size(limit)}; part {part.number} is "
                "not committed. Raise limits: {disk: …}, or write fewer columns"
            )

    def _worker(self) -> Mapping[str, Any]:
        return {
            "host": platform.node(),
            "shard": str(self._shard),
            "run": self._context.run_id,
            "processor": self._processor,
        }


def _files(record: OutputRecord | None, decisions: CommitLog) -> Iterator[Path]:
    """Yield the files of the parts that the ledger knows, in their order; each is here until the next one is wanted."""
    for part in record.parts if record is not None else ():
        for one in part.files:
            with suppress(FileNotFoundError), decisions.output.local(str(one.file)) as path:
                yield path


class _Shifted:
    """An observer for a part that adds the rows of the parts before to its counts."""

    def __init__(self, observer: Any, by: int) -> None:
        self._observer = observer
        self._by = by

    def job_started(self, job: str, done: int, total: int | None) -> None:
        self._observer.job_started(job, done + self._by, total)

    def rows_done(self, done: int, failed: int) -> None:
        self._observer.rows_done(done + self._by, failed)

    def job_ended(self) -> None:
        self._observer.job_ended()
