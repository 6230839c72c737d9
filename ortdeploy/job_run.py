"""One job of one run: batches from the source through a session into parts, each committed, or a reason why not.

Whatever ends a job early leaves it so that the next run goes on where this one stopped.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, groupby
from pathlib import Path
from typing import Protocol

import structlog

from ortdeploy.batch_pool import BatchPool, Finished
from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.feeds import wanted_columns
from ortdeploy.ledger import Ledger, Part
from ortdeploy.native_output import because
from ortdeploy.opening import OpenedModel, OpenedSession
from ortdeploy.part_files import open_whole, remove_temporaries
from ortdeploy.plan import LoadAdapter, Plan, RunJob
from ortdeploy.report import write_report
from ortdeploy.rows import Outcome
from ortdeploy.shares import allowed_count
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.files import list_files
from ortdeploy.sources.protocol import Batch, FailedRow

log = structlog.get_logger()


class Status(StrEnum):
    """How a job ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NOTHING_TO_DO = "nothing-to-do"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended, with the rows that are committed, failed and skipped over all its runs.

    `dropped` are the sessions whose provider failed while others went on.
    """

    job: str
    status: Status
    output: str
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reason: str | None = None
    provider_failed: bool = False
    dropped: tuple[OpenedSession, ...] = ()


class Observer(Protocol):
    """Sees a job advance; a progress bar or periodic log lines."""

    def job_started(self, job: str, done: int, total: int | None) -> None:
        """Take note of a job that begins with `done` rows behind it."""

    def rows_done(self, done: int, failed: int) -> None:
        """Take note of how many rows of the running job are behind it, and how many of them failed."""

    def job_ended(self) -> None:
        """Take note that the running job ended, in whatever way."""


class _BudgetError(OrtdeployError):
    """More rows failed than the job's error budget allows."""


class _StoppedError(Exception):
    """Somebody asked the run to stop."""


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Rows of a job over all its runs."""

    done: int = 0
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    pending: list[FailedRow] = field(default_factory=list)
    part: int = 0


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
        printed: Callable[[], str] = lambda: "",
    ) -> None:
        """Take what the job needs of the world; nothing is touched yet."""
        self._printed = printed
        self._plan = plan
        self._step = step
        self._opened = opened
        self._run_id = run_id
        self._ledger = ledger
        self._observer = observer
        self._stop = stop
        self._folder = Path(plan.folder) / step.output
        self._output = ledger.key(self._folder)
        self._pool = BatchPool(step, opened.sessions, dispensable=opened.dispensable)
        self._progress = _Progress()
        self._begin = time.perf_counter()
        self._begun = False
        self._provider_failed = False
        loaded = (one for one in plan.steps if isinstance(one, LoadAdapter) and one.session == step.session)
        self._adapters = {one.path: _stat(one.path) for one in loaded}
        self._log = log.bind()  # once: the module's logger is a proxy that binds at every call

    def run(self) -> JobResult:
        """Run what is not committed yet. Whatever ends the job early leaves it so that it can go on."""
        status, reason = Status.FAILED, None
        try:
            if self._resume():
                return self._result(Status.NOTHING_TO_DO, None)
            self._stream()
            self._check_sum()
            status = Status.DONE
        except _StoppedError:
            status, reason = Status.INTERRUPTED, "the run was asked to stop"
        except OSError as error:
            reason = f"{error.filename or self._folder}: {error.strerror}"
        except MemoryError as error:
            reason = f"memory ran out; a smaller batch or rows_per_part needs less ({error})"
        except ProviderFailedError as error:
            reason, self._provider_failed = f"{error}{because(self._printed())}", True
        except OrtdeployError as error:
            reason = str(error)
        finally:
            self._observer.job_ended()
        return self._close(status, reason)

    def _resume(self) -> bool:
        """Take up where the ledger says that an earlier run stopped; return whether nothing is left to do."""
        step, progress = self._step, self._progress
        known = self._ledger.output(self._output)
        if known is not None and not self._folder.exists():
            self._ledger.forget(self._output)
            known = None
        if known is not None and dict(known.identity) != dict(step.identity):
            raise OrtdeployError(f"{step.output} holds parts of another plan")
        if known is not None and known.status == Status.DONE:
            return True
        for part in known.parts if known else ():
            progress.done += part.rows
            progress.committed += part.committed
            progress.failed += part.failed
            progress.skipped += part.skipped
        progress.part = len(known.parts) if known else 0
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(self._folder)
        self._ledger.begin(
            self._output,
            deployment=self._plan.deployment,
            job=step.job,
            identity=step.identity,
            run=self._run_id,
        )
        self._begun = True
        self._log.info("job.started", rows=step.rows, done=progress.done, output=step.output)
        self._observer.job_started(step.job, progress.done, step.rows)
        return False

    def _stream(self) -> None:
        """Read batches and write parts until the input ends."""
        step = self._step
        files = list_files(self._plan.folder, step.patterns)
        with SOURCES[step.format].open_source(files, self._plan.folder, wanted_columns(step)) as source:
            batches = source.batches(self._progress.done, step.read_size)
            finished = self._pool.run(self._until_stopped(batches))
            for number, part in groupby(finished, key=lambda one: one.batch.start // step.rows_per_part):
                self._write_part(number, part)

    def _until_stopped(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Pass batches on until somebody asks the run to stop."""
        for batch in batches:
            if self._stop():
                raise _StoppedError
            yield batch

    def _write_part(self, number: int, batches: Iterator[Finished]) -> None:
        """Write one part under a temporary name, rename it, commit it."""
        module = SINKS[self._step.output_format]
        path = self._folder / f"part-{number:05d}{module.SUFFIX}"
        self._progress.part = number
        first = next(batches)
        totals = _Totals(start=first.batch.start)
        with ExitStack() as stack:
            sink = None
            for finished in chain([first], batches):
                outcome = finished.outcome
                self._count(finished)
                totals.add(finished.batch.count, outcome)
                if outcome.committed:
                    if sink is None:
                        file = stack.enter_context(open_whole(path))
                        sink = module.open_sink(file, (*self._step.key, *self._step.columns))
                    try:
                        sink.write(outcome.columns)
                    except ValueError as error:
                        raise OrtdeployError(f"{path.name}: {error}") from error
            if sink is not None:
                sink.close()
            self._check_adapters()  # before the part gets its name
        self._commit(totals.part(number, path if sink is not None else None))

    def _count(self, finished: Finished) -> None:
        """Keep count of a batch. Raises _BudgetError where too many rows have failed."""
        batch, outcome, progress = finished.batch, finished.outcome, self._progress
        self._log.debug("batch.finished", start=batch.start, rows=batch.count, seconds=finished.seconds)
        progress.done += batch.count
        progress.committed += outcome.committed
        progress.skipped += outcome.skipped
        if outcome.failed:
            self._note(outcome.failed)
        self._observer.rows_done(progress.done, progress.failed)

    def _note(self, failed: list[FailedRow]) -> None:
        progress = self._progress
        progress.failed += len(failed)
        progress.pending += failed
        for row in failed:
            self._log.warning(
                "row.failed", row=row.row, source=row.source, stage=row.stage, code=row.code, reason=row.message
            )
        limit = self._limit()
        if limit is not None and progress.failed > limit:
            last = failed[-1]
            raise _BudgetError(
                f"{progress.failed} rows failed and errors: {{max_failed: {self._step.max_failed}}} allows {limit}. "
                f"The last: {last.source}: {last.message}"
            )

    def _limit(self, total: int | None = None) -> int | None:
        """Return how many rows may fail; a share of an unknown number of rows is judged at the end."""
        allowed = self._step.max_failed
        rows = self._step.rows if total is None else total
        if rows is None:
            return allowed if isinstance(allowed, int) else None
        return allowed_count(allowed, rows)

    def _check_adapters(self) -> None:
        """Raise OrtdeployError when an adapter file was changed in place: it is mapped, so its numbers changed too."""
        for path, before in self._adapters.items():
            if _changed_in_place(path, before):
                raise OrtdeployError(
                    f"{path} was changed while it was in use. Replace an adapter by renaming a new file into its place"
                )

    def _commit(self, part: Part) -> None:
        self._ledger.commit_part(self._output, part, self._progress.pending)
        self._progress.pending = []
        text = self._printed()
        if text:
            self._log.debug("session.printed", model=self._step.model, text=text)
        self._log.info("part.committed", part=part.number, rows=part.rows, failed=part.failed, file=part.file)

    def _check_sum(self) -> None:
        """Rows in = committed + failed + skipped, and the error budget over all of them."""
        progress = self._progress
        accounted = progress.committed + progress.failed + progress.skipped
        if progress.done != accounted or self._step.rows not in {None, progress.done}:
            raise OrtdeployError(
                f"the input has {self._step.rows or progress.done} rows and {accounted} are accounted for; "
                "did the input change while it was read?"
            )
        limit = self._limit(progress.done)
        if limit is not None and progress.failed > limit:
            raise _BudgetError(
                f"{progress.failed} of {progress.done} rows failed; max_failed {self._step.max_failed} allows {limit}"
            )

    def _close(self, status: Status, reason: str | None) -> JobResult:
        """Write down how the job ended: ledger, report, log. Counts are the ledger's."""
        try:
            if self._progress.pending:
                self._ledger.note_failures(self._output, self._progress.part, self._progress.pending)
            if self._begun:  # else the output may be another plan's, which is not touched
                self._ledger.end(self._output, status, reason)
                self._report()
        except OSError as error:
            status, reason = Status.FAILED, reason or f"{error.filename or self._folder}: {error.strerror}"
        except OrtdeployError as error:
            status, reason = Status.FAILED, reason or str(error)
        result = self._result(status, reason)
        self._log_end(result)
        return result

    def _log_end(self, result: JobResult) -> None:
        event = {Status.DONE: "job.finished", Status.INTERRUPTED: "job.interrupted"}.get(result.status, "job.failed")
        level = self._log.info if result.status is Status.DONE else self._log.error
        level(
            event,
            committed=result.committed,
            failed=result.failed,
            skipped=result.skipped,
            seconds=round(result.seconds, 3),
            reason=result.reason,
        )

    def _report(self) -> None:
        record = self._ledger.output(self._output)
        if record is not None and self._folder.is_dir():
            write_report(
                folder=self._folder,
                record=record,
                failures=self._ledger.failures(self._output),
                plan=self._plan,
                step=self._step,
                members=self._pool.members,
                tried={one.session: one.reason for one in self._opened.tried},
                seconds=time.perf_counter() - self._begin,
            )

    def _result(self, status: Status, reason: str | None) -> JobResult:
        try:
            record = self._ledger.output(self._output)
        except OrtdeployError:
            record = None
        parts = record.parts if record else ()
        return JobResult(
            job=self._step.job,
            status=status,
            output=self._step.output,
            committed=sum(part.committed for part in parts),
            failed=sum(part.failed for part in parts) + len(self._progress.pending),
            skipped=sum(part.skipped for part in parts),
            seconds=time.perf_counter() - self._begin,
            reason=reason,
            provider_failed=self._provider_failed,
            dropped=tuple(member.opened for member in self._pool.members if member.failure is not None),
        )


def _stat(path: str) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except OSError:
        return None


def _changed_in_place(path: str, before: os.stat_result | None) -> bool:
    """Tell whether the same file has another size or time; one that was renamed away, or replaced, is still mapped."""
    now = _stat(path)
    if now is None or before is None or now.st_ino != before.st_ino:
        return False
    return (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns)


class _Totals:
    """What a part holds, added up batch by batch."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._rows = self._committed = self._failed = self._skipped = 0

    def add(self, batch_rows: int, outcome: Outcome) -> None:
        self._rows += batch_rows
        self._committed += outcome.committed
        self._failed += len(outcome.failed)
        self._skipped += outcome.skipped

    def part(self, number: int, path: Path | None) -> Part:
        return Part(
            number=number,
            start=self._start,
            rows=self._rows,
            committed=self._committed,
            failed=self._failed,
            skipped=self._skipped,
            file=path.name if path else None,
            bytes=path.stat().st_size if path else 0,
        )
