"""The failed rows of a job once more: those that give a result now are put into their parts, at their places.

A part is replaced in three steps, after each of which the power may go: the merged file lies beside the part, synced;
the ledger says that it takes the part's place, and what is in it; it is renamed. Whoever comes next completes what was
begun, so that a row is in its part exactly when the ledger says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.feeds.feeder import open_rows
from ortdeploy.files.atomic import TEMPORARY, Hashing, open_synced, remove_temporaries, sync_folder
from ortdeploy.ledger.check import merged_name
from ortdeploy.ledger.ledger import Merge, Part, is_as_written, part_name
from ortdeploy.ledger.merges import complete, complete_merges
from ortdeploy.results.results import JobResult, Status
from ortdeploy.results.rows import FailedRow
from ortdeploy.running.job import JobRun, StoppedError
from ortdeploy.running.member import Finished
from ortdeploy.running.part_writer import PartWriter
from ortdeploy.running.stream import Stream
from ortdeploy.sinks.catalogue import SINKS


@dataclass(slots=True)
class _Again:
    """What became of a part's failed rows: those with a result by number, and those that failed again."""

    recovered: list[int] = field(default_factory=list)
    failed: list[FailedRow] = field(default_factory=list)


class RetryRun(JobRun):
    """The failed rows of one job."""

    def _work(self) -> Status:
        """Run the failed rows of every part."""
        if self._step.pipeline is not None and self._step.pipeline.state:
            raise OrtdeployError("rows that hand state on cannot be run by themselves; apply with --new-run")
        known = self._ledger.output(self._output)
        if known is None or not self._folder.exists() or dict(known.identity) != dict(self._step.identity):
            raise OrtdeployError(f"{self._step.output.shown} holds no result of this job as it is now; apply it first")
        self._check_record(known)
        self._check_parts()
        complete_merges(self._ledger, self._output, self._folder, known.parts)
        remove_temporaries(self._folder)
        self._digits = known.part_digits
        attempts = self._ledger.failed_rows(self._output)
        parts = [part for part in self._parts() if part.number in attempts]
        self._begun = True  # a retry that was killed may have left a report from before
        if not parts:
            return Status.NOTHING_TO_DO
        inputs = self._ledger.inputs(self._output)
        batching = self._step.batching
        if batching.last == "drop":  # rows at the input's end were dropped already
            batching = replace(batching, last="short")
        source = replace(self._step.input, files=tuple(one.state for one in inputs), first_row=0)
        self._step = replace(self._step, input=source, batching=batching)
        self._check_files()
        self._log.info("job.started", rows=sum(map(len, attempts.values())), done=0, output=self._step.output.shown)
        self._observer.job_started(self._step.job, 0, sum(map(len, attempts.values())))
        if self._step.row_check.declared:
            models, numbers = (
                list(self._step.row_check.declared),
                sorted(row for part in parts for row in attempts[part.number]),
            )
            reason = "failed rows are run once more, without those that stood beside them"
            self._log.warning("batch.cut_anew", first=numbers[0], last=numbers[-1], models=models, reason=reason)
        for part in parts:
            if self._stop():
                raise StoppedError
            self._retry_part(part, attempts[part.number])
        return Status.DONE

    def _retry_part(self, part: Part, attempts: Mapping[int, int]) -> None:
        """Run a part's failed rows, and put those that give a result now into the part."""
        self._check_digest(part)
        self._stream = Stream(self._step, self._opened.sessions, dispensable=False, stop=self._stop, prove=self._prove)
        writer = PartWriter(self._step, self._folder, self._origin)
        again = _Again()

        def noted(finished: Finished) -> Finished:
            missing = {row.row for row in finished.outcome.failed}.union(finished.outcome.skipped)
            again.recovered += [row for row in finished.block.rows if row not in missing]
            again.failed += finished.outcome.failed
            self._done += finished.block.count
            self._observer.rows_done(self._done, len(again.failed))
            return finished

        blocks = self._stream.run(partial(open_rows, self._step, self._plan.folder, sorted(attempts)), min(attempts))
        new = self._folder / f".retry-{part.number:05d}{SINKS[self._step.output.format].SUFFIX}{TEMPORARY}"
        writer.write_file(new, map(noted, blocks))
        if self._stream.stopped:
            raise StoppedError
        self._files.check()  # before what was found goes into the part
        if again.recovered:
            self._merge(part, set(attempts), again, new)
        self._ledger.note_failures(
            self._output,
            part.number,
            [replace(row, attempts=row.attempts + attempts[row.row]) for row in again.failed],
        )

    def _merge(self, part: Part, failed: set[int], again: _Again, new: Path) -> None:
        """Put new rows into a part."""
        module = SINKS[self._step.output.format]
        file = part.file or part_name(part.number, self._digits, module.SUFFIX)
        missing = failed.union(part.skipped_rows)
        rows = [row for row in range(part.start, part.start + part.rows) if row not in missing]
        numbers = [*rows, *again.recovered]
        merged = self._folder / merged_name(file)
        with open_synced(merged) as target:
            hashing = Hashing(target)
            old = self._folder / file if part.file else None
            module.merge(old, new, sorted(range(len(numbers)), key=numbers.__getitem__), cast("BinaryIO", hashing))
            written = hashing.written()
        sync_folder(self._folder)
        merge = Merge(
            part=part.number,
            temporary=merged.name,
            file=file,
            bytes=written.bytes,
            rows=tuple(again.recovered),
            sha256=written.sha256,
            mtime_ns=written.mtime_ns,
        )
        self._ledger.begin_merge(self._output, merge)
        complete(self._ledger, self._output, self._folder, part, merge)
        if self._upload is not None:
            self._upload.send(lambda name: name == file, anew=True)
        new.unlink(missing_ok=True)
        self._log.info("part.merged", part=part.number, rows=len(again.recovered), file=file)

    def _check_digest(self, part: Part) -> None:
        """Raise OrtdeployError where a part that rows are to be put into does not hold the bytes that were written."""
        if part.file is not None and not is_as_written(self._folder / part.file, part, digest=None):
            raise OrtdeployError(
                f"{self._step.output.shown}/{part.file} was committed and holds other bytes than were written. Bring "
                "it back from a copy; nothing was put into it"
            )

    def _close(self, status: Status, reason: str | None) -> JobResult:
        """Write the report; how the job itself stands is not changed by a retry."""
        try:
            if self._begun:
                self._report()
        except (OSError, OrtdeployError) as error:
            status, reason = Status.FAILED, reason or str(error)
        result = self._result(status, reason)
        self._log_end(result)
        return result
