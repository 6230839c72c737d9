"""One job of one run: blocks from the source through the sessions into parts, each committed, or a reason why not.

Whatever ends a job early leaves it so that the next run goes on. A part that is not whole is not committed, so that
what ends a job when changes no byte of any part; what is through of it is kept, see `begun_part`.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import structlog

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.feeds.feeder import open_rows
from ortdeploy.files.atomic import make_durable_folder, remove_temporaries, sync_folder
from ortdeploy.files.known_digests import DigestCache
from ortdeploy.files.names import name_aside
from ortdeploy.files.object_store import Upload
from ortdeploy.ledger.check import check_output
from ortdeploy.ledger.ledger import (
    PART_DIGITS,
    Begun,
    Ledger,
    OutputRecord,
    Part,
    find_damage,
    now,
    part_name,
    undamaged,
)
from ortdeploy.ledger.live_progress import Live
from ortdeploy.ledger.merges import complete_merges
from ortdeploy.pipelines.steps import State, pack_state, unpack_state
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.leaks import LeakWatch
from ortdeploy.process.memory import memory_now
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.process.native_output import because
from ortdeploy.results.results import JobResult, Observer, Status
from ortdeploy.running.begun_part import BegunPart, UntilError
from ortdeploy.running.block_sizes import part_border
from ortdeploy.running.error_budget import ErrorBudget
from ortdeploy.running.held_files import Files, UnheldFiles
from ortdeploy.running.member import Finished
from ortdeploy.running.part_writer import PartWriter, Totals
from ortdeploy.running.provenance import provenance
from ortdeploy.running.report import write_report
from ortdeploy.running.statistics import JobStatistics, check_statistics
from ortdeploy.running.stream import Stream
from ortdeploy.sessions.opening import OpenedModel, OpenedSession
from ortdeploy.sessions.row_proof import RowProof
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.files import find_changed
from ortdeploy.units import format_size

if TYPE_CHECKING:
    from ortdeploy.results.rows import FailedRow

log = structlog.get_logger()


SECONDS_BETWEEN_REPORTS = 5.0
"""While a job runs its report is written this often at most, after a commit."""


class StoppedError(Exception):
    """Somebody asked the run to stop."""


class JobRun:
    """One job of one run."""

    def __init__(
        self,
        *,
        plan: Plan,
        step: RunJob,
        opened: OpenedModel,
        run_id: str,
        ledger: Ledger,
        observer: Observer,
        stop: Callable[[], bool],
        native_text: Callable[[], str] = lambda: "",
        prove: Callable[[OpenedSession], RowProof | None] = lambda _opened: None,
        files: Files | None = None,
    ) -> None:
        """Take what the job needs of the world; nothing is touched yet."""
        self._native_text = native_text
        self._prove = prove
        self._files = files or UnheldFiles()
        self._plan = plan
        self._step = step
        self._opened = opened
        self._run_id = run_id
        self._ledger = ledger
        self._observer = observer
        self._stop = stop
        self._folder = Path(plan.folder) / step.output.path
        self._upload = Upload(step.output.upload, self._folder) if step.output.upload else None
        self._output = ledger.key(self._folder)
        self._stream = Stream(step, opened.sessions, dispensable=opened.dispensable, stop=stop, prove=prove)
        self._origin = provenance(plan, step, opened)
        self._writer = PartWriter(step, self._folder, self._origin)
        self._statistics = JobStatistics({}, self._stream, self._writer)
        self._budget = ErrorBudget(step, 0)
        self._memory = MemoryWatch(step.limits.memory, len(opened.sessions) + 1, trim=step.trim)
        self._leak = LeakWatch()
        self._memory_by_stage = dict(opened.memory)
        self._state: State | None = None
        self._committed_state: str | None = None
        self._done = 0
        self._part, self._digits = 0, PART_DIGITS
        self._begun_part = BegunPart(ledger, self._output, step, self._folder, self._writer)
        self._pending: list[FailedRow] = []
        self._begun = False
        self._live: Live | None = None
        self._reported = time.monotonic()
        self._provider_failed = False
        self._log = log.bind()  # once: the module's logger is a proxy that binds at every call

    def run(self) -> JobResult:
        """Run what is not committed yet. Whatever ends the job early leaves it so that it can go on."""
        status, reason = Status.FAILED, None
        try:
            with self._memory.bound:
                status = self._work()
            if status is Status.NOTHING_TO_DO and not self._begun:
                return self._result(status, None)
        except (StoppedError, KeyboardInterrupt) as error:
            how = "asked to stop" if isinstance(error, StoppedError) else "stopped at once"
            status, reason = Status.INTERRUPTED, f"the run was {how}"
        except OSError as error:
            reason = f"{error.filename or self._folder}: {error.strerror}"
        except MemoryError as error:
            within = f" within {format_size(self._memory.limit)}" if self._memory.limit else ""
            reason = f"memory ran out{within}; a smaller batch or rows_per_part needs less ({error})"
        except ProviderFailedError as error:
            reason, self._provider_failed = f"{error}{because(self._native_text())}", True
        except OrtdeployError as error:
            reason = str(error)
        finally:
            self._memory.end()
            self._observer.job_ended()
            if self._live is not None:
                self._live.end()
        return self._close(status, reason)

    def _work(self) -> Status:
        if self._resume():
            return Status.NOTHING_TO_DO
        self._write_parts()
        self._check_sum()
        if self._upload is not None:
            self._upload.tidy()
        return Status.DONE

    def _resume(self) -> bool:
        """Take up where the ledger says that an earlier run stopped; return whether nothing is left to do."""
        step = self._step
        known = self._known_output()
        if known is not None:
            if dict(known.identity) != dict(step.identity):
                raise OrtdeployError(f"{step.output.shown} holds parts of another plan")
            if self._is_finished(known):
                return True
            self._check_parts()
            complete_merges(self._ledger, self._output, self._folder, known.parts)
            self._take_up(known)
        self._check_files()
        if self._upload is not None:
            self._upload.check(known=known is not None)
        make_durable_folder(self._folder)
        remove_temporaries(self._folder)
        self._begun_part.tidy()
        self._ledger.begin(
            self._output,
            deployment=self._plan.deployment,
            job=step.job,
            identity=step.identity,
            run=self._run_id,
            files=step.input.files,
        )
        self._begun = True
        if step.batching.auto:
            self._ledger.remember_batch_size(self._output, step.batching.run_size)
        self._log.info("job.started", rows=step.input.rows, done=self._done, output=step.output.shown)
        self._observer.job_started(step.job, self._done, step.input.rows)
        self._live = Live(self._ledger.state_dir, self._output, step.input.rows, self._done)
        return False

    def _known_output(self) -> OutputRecord | None:
        """Return what the ledger knows of the output, once an old one has made room and a lost one is forgotten."""
        known = self._ledger.output(self._output)
        if known is not None and not self._folder.exists():
            self._ledger.forget(self._output)
            return None
        if known is not None and known.run == self._step.output.replaces:
            self._put_aside(known)
            return None
        if known is not None:
            self._check_record(known)
        return known

    def _check_record(self, known: OutputRecord) -> None:
        """Raise OrtdeployError where the ledger contradicts itself about the output; nothing was touched yet."""
        check_output(self._ledger, known, SINKS[self._step.output.format].SUFFIX)
        with undamaged():
            check_statistics(known.statistics)

    def _put_aside(self, known: OutputRecord) -> None:
        """Give an old output another name, which says when it was begun; nothing of it is overwritten."""
        aside = name_aside(self._folder, known.started)
        self._folder.rename(aside)
        sync_folder(self._folder.parent)
        if self._upload is not None:
            self._upload.put_aside(unquote(aside.name).rpartition("/")[2])
        self._ledger.rename(self._output, self._ledger.key(aside))
        self._log.info("output.put_aside", output=self._step.output.shown, kept=aside.name)

    def _is_finished(self, known: OutputRecord) -> bool:
        """Tell whether every file of the plan is accounted for, here or by a run that was quicker."""
        done = {one.state for one in self._ledger.inputs(self._output) if one.done}
        return known.status == Status.DONE and done.issuperset(self._step.input.files)

    def _take_up(self, known: OutputRecord) -> None:
        if known.first_row != self._step.input.first_row:
            raise OrtdeployError(
                f"another run has worked on {self._step.output.shown} since the plan was made; plan again"
            )
        begun = self._begun_part.take_up(known)
        known = replace(known, begun=begun)
        self._done = known.rows if begun is None else begun.end
        self._part, self._digits = len(known.parts), known.part_digits
        self._budget = ErrorBudget(self._step, known.failed, self._failed_last(begun))
        with undamaged():
            self._statistics = JobStatistics(known.statistics, self._stream, self._writer)
            self._committed_state = known.statistics.get("state")
            state = self._committed_state if begun is None else begun.state
            if state is not None:
                self._state = unpack_state(state)
                for member in self._stream.members:
                    member.rows.go_on_from(self._state)

    def _failed_last(self, begun: Begun | None) -> int:
        """Return how many rows failed one after the other up to the one with which the job goes on."""
        if self._step.errors.max_consecutive is None:
            return 0
        failed = {row for rows in self._ledger.failed_rows(self._output).values() for row in rows}
        if begun is not None:
            failed.update(self._ledger.failed_of_begun(self._output, begun))
        return next(number for number in count() if self._done - 1 - number not in failed)

    def _write_parts(self) -> None:
        """Read blocks and write parts until the input ends. Raises what ends the job early."""
        blocks = self._counted(self._stream.run(partial(open_rows, self._step, self._plan.folder), self._done))
        try:
            with closing(blocks):
                begun = self._begun_part.now
                if begun is not None:
                    self._write_part(self._rest_of_part(begun.part.start, begun.end, blocks))
                for first in blocks:
                    start = first.block.start
                    self._write_part(chain([first], self._rest_of_part(start, start + first.block.count, blocks)))
        except (OSError, MemoryError, OrtdeployError):
            self._files.check()  # numbers that changed under a session explain what it did
            raise
        self._check_files()

    def _counted(self, finished: Iterator[Finished]) -> Generator[Finished]:
        """Pass blocks on, counted. Raises what ends them before the input does.

        A block whose failed rows are too many for the budget is not passed on: the next run tries it again.
        """
        try:
            for one in finished:
                self._log_block(one)
                if "first_rows" not in self._memory_by_stage:
                    self._memory_by_stage["first_rows"] = memory_now()
                self._state = one.outcome.state or self._state
                self._pending += one.outcome.failed
                self._budget.note(one.block, one.outcome.failed)
                self._done += one.block.count
                self._observer.rows_done(self._done, self._budget.failed)
                if self._live is not None:
                    self._live.rows_done(self._done, self._budget.failed)
                yield one
                if self._memory.is_near():
                    self._keep_to_memory()
                self._watch_for_leak()
        finally:
            finished.close()  # type: ignore[attr-defined]  # it is a generator
        if self._stream.stopped:
            raise StoppedError

    def _keep_to_memory(self) -> None:
        """Run smaller batches, near the limit. Raises OrtdeployError beyond it, where nothing else helps."""
        smaller = [member.rows.run_smaller() for member in self._stream.members]
        taken, limit = format_size(self._memory.resident), format_size(self._memory.limit or 0)
        self._log.warning("job.near_limit", resident=taken, limit=limit)
        if self._memory.is_over and not any(smaller):
            raise OrtdeployError(
                f"the process takes {taken} of memory and may take {limit}, with batches that cannot be smaller. Raise "
                "limits: {memory: …}, or write memory: lean for the model"
            )

    def _watch_for_leak(self) -> None:
        verdict = self._leak.look(sum(member.rows.run_times.count for member in self._stream.members))
        if verdict is not None:
            self._log.warning("job.leaks", verdict=verdict.text)

    def _rest_of_part(self, start: int, end: int, blocks: Iterator[Finished]) -> Iterator[Finished]:
        """Yield the further blocks of the part that begins with the row `start`: those from the row `end` on."""
        border = part_border(self._step, start)
        while end < border and (block := next(blocks, None)) is not None:
            end += block.block.count
            yield block
        self._files.check()  # before the part gets its name

    def _write_part(self, blocks: Iterator[Finished]) -> None:
        """Write one part under a temporary name, rename it, commit it. Raises what ends the job early."""
        name = part_name(self._part, self._digits, SINKS[self._step.output.format].SUFFIX)
        until = UntilError(blocks)
        try:
            totals = self._writer.write(name, until, self._begun_part.now)
        except (OSError, MemoryError, OrtdeployError) as error:
            if until.error is None:
                raise
            self._begun_part.note_loss(self._part, str(error))
            raise until.error from error
        if until.error is not None:
            self._keep(name, totals)
            raise until.error
        self._writer.give_name(name, totals, name)
        part = totals.part(self._part, name)
        self._check_disk(part)
        try:
            self._send(part)
        except OrtdeployError:
            self._writer.take_name(name, totals)
            self._keep(name, totals)
            raise
        self._commit(part)

    def _keep(self, name: str, totals: Totals) -> None:
        """Keep what is through of a part for the next run."""
        self._files.check()
        origin = self._begun_part.origin(self._origin)
        self._pending = self._begun_part.keep(self._part, name, totals, self._pending, origin)

    def _send(self, part: Part) -> None:
        """Upload a part before it is committed. Raises OrtdeployError."""
        if self._upload is not None and part.file is not None:
            self._upload.send(lambda name: name == part.file or "/" in name)

    def _check_disk(self, part: Part) -> None:
        """Raise OrtdeployError when a part is one too many for the disk that the job may use; it is not committed."""
        limit = self._step.limits.disk
        if limit is None or part.file is None:
            return
        taken = part.bytes + sum(one.bytes for one in self._parts())
        if taken > limit:
            (self._folder / part.file).unlink()
            sync_folder(self._folder)
            raise OrtdeployError(
                f"the output would take {format_size(taken)} and may take {format_size(limit)}; its last part is not "
                "committed. Raise limits: {disk: …}, or write fewer columns"
            )

    def _log_block(self, finished: Finished) -> None:
        block = finished.block
        for row in finished.outcome.failed:
            self._log.warning(
                "row.failed", row=row.row, source=row.source, stage=row.stage, code=row.code, reason=row.message
            )
        self._log.debug("block.finished", start=block.start, rows=block.count, seconds=finished.seconds)

    def _kept(self, *, committed: bool = False) -> dict[str, Any]:
        """Return what the ledger keeps of the job: its numbers, and the state that the next row takes."""
        if not committed and self._state is not None:
            self._committed_state = pack_state(self._state)
        state = {} if self._committed_state is None else {"state": self._committed_state}
        return {**self._statistics.plain(), **state}

    def _commit(self, part: Part) -> None:
        begin = time.perf_counter()
        self._ledger.commit_part(
            self._output,
            part,
            self._pending,
            provenance=self._begun_part.origin(self._origin),
            statistics=self._kept(),
        )
        self._begun_part.committed()
        self._statistics.committed(self._done, time.perf_counter() - begin)
        self._pending = []
        self._part += 1
        text = self._native_text()
        if text:
            self._log.debug("session.printed", model=self._step.model, text=text)
        if time.monotonic() - self._reported > SECONDS_BETWEEN_REPORTS:
            self._report()
            self._reported = time.monotonic()
        self._log.info("part.committed", part=part.number, rows=part.rows, failed=part.failed, file=part.file)

    def _check_files(self) -> None:
        """Raise OrtdeployError when an input file is gone, or not what it was when the plan was made."""
        changed = find_changed(self._step.input.files, self._plan.folder, self._step.input.patterns)
        if changed is not None:
            raise OrtdeployError(
                f"{changed} is not what it was when the plan was made: it changed while it was read. Apply with "
                "--new-run to start over from what it is now"
            )

    def _check_sum(self) -> None:
        """Rows in = committed + failed + skipped, all parts are there, and the error budget over all rows."""
        parts = self._parts()
        accounted = sum(part.committed + part.failed + part.skipped for part in parts)
        if self._done != accounted or self._step.input.rows not in {None, self._done}:
            raise OrtdeployError(
                f"the input has {self._step.input.rows or self._done} rows and {accounted} are accounted for; "
                "did the input change while it was read?"
            )
        self._check_parts(" while the job ran")
        self._budget.judge(self._done)

    def _check_parts(self, when: str = "") -> None:
        """Raise OrtdeployError where a committed part is not what was written."""
        digests = DigestCache(self._ledger.state_dir)
        damage = find_damage(self._folder, self._parts(), self._ledger.merges(self._output), digests.digest)
        if damage is not None:
            raise OrtdeployError(f"{self._step.output.shown}/{damage}{when}. Bring it back from a copy")

    def _parts(self) -> tuple[Part, ...]:
        record = self._ledger.output(self._output)
        return record.parts if record else ()

    def _close(self, status: Status, reason: str | None) -> JobResult:
        """Write down how the job ended: ledger, report, log. Counts are the ledger's."""
        if self._begun:  # else the output may be another plan's, which is not touched
            try:
                if self._pending:
                    self._ledger.note_failures(self._output, self._part, self._pending)
                self._ledger.keep_statistics(self._output, self._kept(committed=True))
                status, reason = self._end(status, reason)
            except OrtdeployError as error:
                status, reason = Status.FAILED, reason or str(error)
        result = self._result(status, reason)
        self._log_end(result)
        return result

    def _end(self, status: Status, reason: str | None) -> tuple[Status, str | None]:
        """Write the report, then the end into the ledger: killed in between, the next run finds the job unfinished."""
        ended = now()
        try:
            self._report(status, reason, ended)
        except OSError as error:
            status, reason = Status.FAILED, reason or f"{error.filename or self._folder}: {error.strerror}"
        self._ledger.end(self._output, status, reason, ended)
        return status, reason

    def _log_end(self, result: JobResult) -> None:
        event = {Status.FAILED: "job.failed", Status.INTERRUPTED: "job.interrupted"}.get(result.status, "job.finished")
        level = self._log.info if event == "job.finished" else self._log.error
        level(
            event,
            committed=result.committed,
            failed=result.failed,
            skipped=result.skipped,
            kept=result.kept,
            seconds=round(result.seconds, 3),
            reason=result.reason,
        )

    def _report(self, status: Status | None = None, reason: str | None = None, ended: str | None = None) -> None:
        """Write the report, of a job that goes on or that ends so."""
        record = self._ledger.output(self._output)
        if record is not None and status is not None:
            record = replace(record, status=status, reason=reason, ended=ended)
        if record is not None and self._folder.is_dir():
            write_report(
                folder=self._folder,
                record=record,
                failures=self._ledger.failures(self._output),
                origins=self._ledger.provenance(record.origins),
                plan=self._plan,
                step=self._step,
                members=self._stream.members,
                skipped={one.session: one.reason for one in self._opened.skipped},
                layout=self._opened.layout,
                memory={**self._memory_by_stage, "last_rows": memory_now()},
                seconds=self._statistics.seconds,
            )
            if self._upload is not None:
                self._upload.send()

    def _result(self, status: Status, reason: str | None) -> JobResult:
        try:
            record = self._ledger.output(self._output)
        except OrtdeployError:
            record = None
        parts, begun = (record.parts, record.begun) if record else ((), None)
        return JobResult(
            job=self._step.job,
            status=status,
            output=self._step.output.shown,
            committed=sum(part.committed for part in parts),
            failed=(record.failed if record else 0) + len(self._pending),
            skipped=sum(part.skipped for part in parts),
            kept=begun.part.rows if begun else 0,
            seconds=self._statistics.seconds,
            reason=reason,
            provider_failed=self._provider_failed,
            dropped=tuple(member.name for member in self._stream.members if member.failure is not None),
        )
