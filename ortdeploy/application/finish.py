"""Writes the decisions about a plan's parts into the ledger and the report, in the order of the parts.

Until every part is in the ledger, the ledger is only a cache of the decisions; then the plan is closed. This may be
done at any time and any number of times, even while shards run.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.events import log
from ortdeploy.facts.contents import FileContents
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.jobs.doubt import refuse_doubt
from ortdeploy.jobs.ending import Ending
from ortdeploy.jobs.environment_check import has_begun
from ortdeploy.jobs.error_budget import BudgetError, ErrorBudget, failed_before
from ortdeploy.jobs.expected import COUNTS, EXPECTED, Expected
from ortdeploy.jobs.input_contents import InputContents
from ortdeploy.jobs.job_report import log_end, recorded_result
from ortdeploy.jobs.rebuild import AHEAD, put_copy, rebuild
from ortdeploy.jobs.reconcile_inputs import carry_out_cut
from ortdeploy.jobs.shared_plan import (
    check_fits,
    decisions_of,
    first_number,
    is_accounted_for,
    is_committed,
    standing_record,
)
from ortdeploy.ledger.ledger import Ledger, now
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.parts.commit_log import CommitLog, tables_in
from ortdeploy.parts.output_owner import write_marker
from ortdeploy.parts.parallel_map import in_threads
from ortdeploy.parts.part_writer import remove_unnamed_parts
from ortdeploy.parts.receipt import Ended, Receipt
from ortdeploy.parts.shared_place import place_of
from ortdeploy.parts.worker_progress import shares_of, worker_name
from ortdeploy.plan.made_by import made_by
from ortdeploy.plan.part_table import PartTable, PlannedPart, part_table
from ortdeploy.plan.plan_file import plan_digest
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.reports.report import RAN_UNKNOWN, committed, write_report
from ortdeploy.reports.statistics import sum_of_statistics
from ortdeploy.results.results import JobResult, Status
from ortdeploy.results.shares import Shares
from ortdeploy.sinks.catalogue import SINKS

_MOST_NAMED = 10


class Finish(Struct, frozen=True, kw_only=True):
    """The end of one job of one plan that was run in shards, or by an engine, which ended with `cause`."""

    plan: Plan
    step: RunJob
    ledger: Ledger
    run_id: str
    cause: Ending | None = None

    def run(self) -> JobResult:
        """Write the decisions into the ledger; the job is done if all are. Raises nothing that a user can cause."""
        shares: Shares | None = None
        try:
            ending, shares = self._fold()
        except OSError as error:
            ending = Ending(status=Status.FAILED, reason=failure_at(self._folder, error))
        except OrtdeployError as error:
            ending = Ending(status=Status.FAILED, reason=str(error))
        result = replace(recorded_result(self.step, self.ledger.output(self._output), ending), shares=shares)
        log_end(result)
        return result

    @property
    def _folder(self) -> Path:
        return Path(self.plan.folder) / self.step.output.path

    @property
    def _output(self) -> str:
        return self.ledger.key(self._folder)

    def _fold(self) -> tuple[Ending, Shares]:
        """Return how the job ends, and the share of each worker. Raises OSError, OrtdeployError."""
        place = place_of(self.step.output.upload, self._folder, (self.plan.folder, *self.plan.roots))
        record = self.ledger.output(self._output)
        if record is None:
            suffix, removable = SINKS[self.step.output.format].SUFFIX, self.step.output.removable
            record = rebuild(place, self.ledger, self._output, suffix=suffix, removable=removable)
        table = part_table(self.step, first_number(record, self.step))
        decisions = self._decisions(record)
        if record is not None and standing_record(record, self.step, table, decisions) is None:
            self.ledger.forget(self._output)
            record = None
        receipts, is_closed = self._receipts(decisions, record, table)
        is_known = is_accounted_for(self.ledger, record, self.step, table)
        if not is_known:
            self._begin(record)
            self._commit(table, receipts)
        missing = [part for part in table if part.number not in receipts and not is_committed(record, part)]
        shares = shares_of(table, receipts, [part.number for part in missing])
        if shares.mixed_workers:
            log.warning("plan.mixed_workers", parts={one.processor: one.parts for one in shares.mixed_workers})
        ending, ended = self._judged(table, missing, len(shares.workers)), now()
        ending, statistics = self._compared(decisions, receipts, ending)
        if receipts or not (missing or is_known):
            self._write(decisions, receipts, ending, shares, ended, statistics)
        if not missing and not (is_known and is_closed):
            contents = self._contents()
            self.ledger.note_contents(self._output, contents)
        if is_closed:
            decisions.tidy()  # the process that closed it may have been killed before this
        elif not missing:
            self._copy(place, table, receipts)
            decisions.close(list(receipts.values()), self._ended(ending, contents))
        if not is_known:  # else what a later run does there is its own
            self.ledger.end(self._output, ending.status, ending.reason, ended, statistics)  # last: not done again
        return ending, shares

    def _decisions(self, record: OutputRecord | None) -> CommitLog:
        """Return the decisions about the plan's parts. Raises OrtdeployError if none may count, OSError."""
        decisions = decisions_of(self.plan, self.step, record, self._folder)
        if not has_begun(decisions):
            raise OrtdeployError(
                f"no shard of this plan has run on {self.step.output.shown}: ortdeploy apply PLAN --shard I/N runs one"
            )
        refuse_doubt(decisions, self.step)
        return decisions

    def _copy(self, place: SharedPlace, table: PartTable, receipts: Mapping[int, Receipt]) -> None:
        """Put a copy of the ledger beside the parts if one machine has made some, which no plan says anything about.

        Raises OSError, OrtdeployError.
        """
        is_missing = any(part.number not in receipts for part in table) or (table.first_number and _is_first(place))
        if is_missing or place.exists(AHEAD):
            put_copy(place, self.ledger, self._output)

    def _receipts(
        self, decisions: CommitLog, record: OutputRecord | None, table: PartTable
    ) -> tuple[Mapping[int, Receipt], bool]:
        """Return the receipts of the decided parts, and whether the plan is closed. Raises OrtdeployError, OSError."""
        if not decisions.is_closed():
            receipts = self._decided(decisions, table)
            if not decisions.is_closed():  # else another machine's finish has deleted decisions meanwhile
                return receipts, False
        return self._closed(decisions, record), True

    def _closed(self, decisions: CommitLog, record: OutputRecord | None) -> Mapping[int, Receipt]:
        """Return the receipts of a closed plan.

        Raises OrtdeployError if a part that is not in the ledger differs, or if nothing says what it is.
        """
        receipts, _ = decisions.closed()
        lacking = [one for one in decisions.table if one.number not in receipts and not is_committed(record, one)]
        if lacking:
            raise OrtdeployError(
                f"this plan is finished, and the ledger under {self.ledger.state_dir} does not know its part "
                f"{lacking[0].number}, which a run on one machine has made. Finish it where the ledger of that run is; "
                "or name an empty folder with --state-dir, where finish makes that ledger again"
            )
        known = set() if record is None else {part.number for part in record.parts}
        for receipt in receipts.values():
            if receipt.part.number not in known:
                self._check_file(decisions, receipt)
        return receipts

    def _contents(self) -> FileContents:
        """Return the digests of what the input files of the plan hold; a file that is not here has none."""
        contents = InputContents(self.plan.folder, are_compared=self.step.input.upstream is None)
        return FileContents.of(contents.of(self.step.input.files))

    def _ended(self, ending: Ending, contents: FileContents) -> Ended:
        return Ended(
            job=self.step.job,
            made_by=made_by(self.plan, self.step),
            files=self.step.input.files,
            contents=contents,
            run=self.run_id,
            status=ending.status,
            reason=ending.reason,
        )

    def _decided(self, decisions: CommitLog, table: PartTable) -> dict[int, Receipt]:
        """Publish all decided parts, and return their receipts by part. Raises OrtdeployError, OSError."""
        settled = in_threads(partial(self._settle, decisions), table, decisions.at_once)
        return {receipt.part.number: receipt for receipt in settled if receipt is not None}

    def _settle(self, decisions: CommitLog, part: PlannedPart) -> Receipt | None:
        """Publish a decided part, and return its receipt; None if it is not decided.

        Raises OrtdeployError if its file is not what was decided, OSError.
        """
        receipt = decisions.rolled_forward(part)
        if receipt is None:
            return None
        if receipt.part.file is None:
            decisions.remove_other(part)
        self._check_file(decisions, receipt)
        return receipt

    def _check_file(self, decisions: CommitLog, receipt: Receipt) -> None:
        """Raise OrtdeployError if the file of a part is not what was decided, OSError."""
        how = decisions.lost(receipt, removable=self.step.output.removable)
        if how is not None:
            raise OrtdeployError(f"{self.step.output.shown}/{how}. Restore it from a copy")

    def _begin(self, record: OutputRecord | None) -> None:
        """Take the output over from a run on one machine that was ended, if there was one. Raises OrtdeployError."""
        if record is not None:
            check_fits(record, self.step)
            contents = InputContents(self.plan.folder, are_compared=True)
            carry_out_cut(self.step, self.plan.folder, self.ledger, record, contents)
        self.ledger.begin(
            self._output,
            made_by=made_by(self.plan, self.step),
            job=self.step.job,
            run=self.run_id,
            files=self.step.input.files,
            first_row=self.step.input.first_row,
            gone=self.step.input.gone,
        )
        self.ledger.forget_begun(self._output)
        if self.step.output.upload is None:
            write_marker(self._folder, self.ledger.state_dir, self.plan.deployment, self.step.job)
            remove_unnamed_parts(self._folder, SINKS[self.step.output.format].SUFFIX)

    def _commit(self, table: PartTable, receipts: Mapping[int, Receipt]) -> None:
        """Commit the parts that follow those in the ledger, up to the first that is missing."""
        record = self._begun()
        statistics = record.statistics
        for part in table:
            if is_committed(record, part):
                continue
            receipt = receipts.get(part.number)
            if receipt is None:
                return
            statistics = sum_of_statistics(statistics, receipt.statistics)
            self.ledger.commit_part(
                self._output,
                receipt.part,
                receipt.failed,
                provenance=receipt.origin,
                statistics=statistics,
                spans=receipt.spans,
            )

    def _judged(self, table: PartTable, missing: Sequence[PlannedPart], workers: int) -> Ending:
        """Return how the job ends, and write it down. Raises OrtdeployError."""
        ending = Ending(status=Status.DONE)
        if missing:
            ending = self._unfinished(missing, len(table))
        else:
            record = self.ledger.output(self._output)
            earlier = failed_before(self.ledger, self._output, self.step)
            try:
                ErrorBudget(self.step, record.failed if record else 0, earlier=earlier).judge(table.end)
            except BudgetError as error:
                ending = Ending(status=Status.FAILED, reason=str(error))
        log.info("plan.folded", parts=len(table), missing=len(missing), workers=workers)
        return ending

    def _compared(
        self, decisions: CommitLog, receipts: Mapping[int, Receipt], ending: Ending
    ) -> tuple[Ending, dict[str, Any]]:
        """Compare the rows of a job that is done with what it expects; return its ending, and its statistics."""
        record = self._begun()
        expected = Expected(self.step, record.statistics)
        if ending.status is Status.DONE and expected.is_due(record):
            counted = {number: one.statistics.get(EXPECTED, {}).get(COUNTS, {}) for number, one in receipts.items()}
            try:
                expected.judge(record, decisions.output.local, counted=counted)
                expected.committed()
            except OrtdeployError as error:
                ending = Ending(status=Status.FAILED, reason=str(error))
        kept = {EXPECTED: expected.kept} if expected and record.statistics else {}
        return ending, {**record.statistics, **kept}

    def _unfinished(self, missing: Sequence[PlannedPart], parts: int) -> Ending:
        """Return how a job with missing parts ends: as the engine says, if one ran it."""
        if self.cause is None:
            return Ending(status=Status.FAILED, reason=_what_is_missing(missing, parts))
        left = f"{len(missing)} of {parts} parts are left to do"
        if self.cause.status is Status.DONE:  # another driver has ended meanwhile, and these are not in its ledger
            return Ending(status=Status.FAILED, reason=left)
        return replace(self.cause, reason=f"{self.cause.reason}; {left}")

    def _write(
        self,
        decisions: CommitLog,
        receipts: Mapping[int, Receipt],
        ending: Ending,
        shares: Shares,
        ended: str,
        statistics: Mapping[str, Any],
    ) -> None:
        """Write the report. Raises OSError, OrtdeployError."""
        record = self._begun()
        with decisions.output.reports() as folder:
            told = replace(record, status=ending.status, reason=ending.reason, ended=ended, statistics=statistics)
            write_report(
                folder,
                committed(self.ledger, told),
                self.plan,
                self.step,
                digest=plan_digest(self.plan, self.step.job),
                ran=_ran(list(receipts.values()), shares),
                seconds=float(record.statistics.get("seconds", 0.0)),
            )

    def _begun(self) -> OutputRecord:
        record = self.ledger.output(self._output)
        if record is None:
            raise AssertionError("the run on it has begun")
        return record


def _is_first(place: SharedPlace) -> bool:
    """Return whether only one plan has begun on an output. Raises OSError, OrtdeployError."""
    return len(list(tables_in(place))) == 1


def _what_is_missing(missing: Sequence[PlannedPart], parts: int) -> str:
    named = ", ".join(f"{part.number} (rows {part.start} to {part.end - 1})" for part in missing[:_MOST_NAMED])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return (
        f"{len(missing)} of {parts} parts are missing: {named}{more}. Shard N % COUNT of them has not run to its end; "
        "run it again with any COUNT, then finish again"
    )


def _workers(receipts: Iterable[Receipt], shares: Shares) -> list[dict[str, Any]]:
    """Return the report's entry on each worker: its name, and what it has made."""
    last = {worker_name(one): one.worker for one in receipts}
    counts = ("parts", "rows", "failed", "seconds")
    return [{**last[one.name], **{name: getattr(one, name) for name in counts}} for one in shares.workers]


def _ran(receipts: Sequence[Receipt], shares: Shares) -> dict[str, Any]:
    """Return the report's entries on sessions and memory: each worker's sessions, and the largest worker's memory."""
    sessions: dict[tuple[str, str, int], dict[str, Any]] = {}
    for who, one in ((worker_name(receipt), session) for receipt in receipts for session in receipt.ran["sessions"]):
        known = who, one["session"], one["instance"]
        sessions[known] = {**(_sum(sessions[known], one) if known in sessions else one), "worker": who}
    first = receipts[0].ran if receipts else RAN_UNKNOWN  # no receipts: a run on one machine made all, and was killed
    return {**first, "sessions": list(sessions.values()), "workers": _workers(receipts, shares), "shares": shares}


def _sum(earlier: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry on a session over another part too; percentiles cannot be added, so there are none."""
    before, now = earlier["session_run"], one["session_run"]
    added = ("count", "seconds", "cpu_seconds")
    sums = {name: round((before.get(name) or 0) + (now.get(name) or 0), 6) for name in added}
    counts = {name: earlier[name] + one[name] for name in ("batches", "rows")}
    return {**one, **counts, "session_run": {**dict.fromkeys(now), **sums}}
