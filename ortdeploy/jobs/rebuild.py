"""Makes the ledger of an output again from what lies beside its parts, if shards have made parts of it.

Each finished plan has left `closed.json`. What one machine does to such an output afterwards, or did before, only the
ledger knows: so a copy of what it knows then is put beside the parts. While a run on one machine is at work there, the
file `ahead.json` says that the copy is not up to date. Nothing is made of a copy that is not, and nothing if a part is
not what it says.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.events import log
from ortdeploy.files.atomic import Written
from ortdeploy.files.scratch import scratch_folder
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger.check import check_output
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.open_plans import CLOSED, FOLDER
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.records import PART_DIGITS, OutputRecord, Part, Revision
from ortdeploy.parts.commit_log import CommitLog, tables_in
from ortdeploy.parts.output_owner import write_marker
from ortdeploy.parts.parallel_map import in_threads
from ortdeploy.plan.part_table import PartTable
from ortdeploy.reports.statistics import sum_of_statistics

COPY = f"{FOLDER}/ledger.db"
AHEAD = f"{FOLDER}/ahead.json"

_KEY = "output"
"""What the output is called in the ledger that is made again, until it is whole and right."""


def put_copy(place: SharedPlace, ledger: Ledger, output: str) -> None:
    """Put a copy of what a ledger knows of an output beside its parts. Raises OSError, OrtdeployError."""
    with scratch_folder("state") as scratch:
        copy = scratch.path / FILE
        ledger.copy_output(output, copy)
        place.put(copy, COPY)
    place.delete(AHEAD)


@contextmanager
def copied_afterwards(context: JobContext) -> Iterator[None]:
    """Put a copy beside the parts after a run on one machine, if shards have made parts of its output.

    After a kill, or if that fails, the next run does. Raises OSError, OrtdeployError before the block.
    """
    place = SharedFolder(context.output.folder, context.roots)
    if context.step.output.aside is None and _is_shared(context):
        place.create(AHEAD, json.dumps({"format_version": 1, "run": context.run_id}).encode())
    yield
    try:
        if _is_shared(context):
            put_copy(place, context.output.ledger, context.output.name)
    except (OSError, OrtdeployError) as error:
        log.warning(
            "ledger.not_copied", output=context.step.output.shown, reason=failure_at(context.output.folder, error)
        )


def _is_shared(context: JobContext) -> bool:
    """Return whether shards have made parts of an output in a folder; on a store, no run goes on with theirs."""
    is_known = context.output.record() is not None
    return is_known and context.output.upload is None and (context.output.folder / FOLDER).is_dir()


def rebuild(place: SharedPlace, ledger: Ledger, output: str, *, suffix: str, removable: bool) -> OutputRecord | None:
    """Make a ledger know an output that it does not know, if a plan on it is finished; return what it knows then.

    Nothing is changed unless all is as it was. Raises OrtdeployError, OSError.
    """
    plans = sorted((table.first_number, digest, table) for digest, table in tables_in(place) if len(table))
    closed = [(digest, table) for _, digest, table in plans if place.exists(f"{FOLDER}/{digest}/{CLOSED}")]
    is_ahead = place.exists(AHEAD)
    if not (closed or is_ahead or place.exists(COPY)):
        return None
    if is_ahead:
        raise OrtdeployError(
            f"a run on one machine has changed {place.shown} and was ended before it could note that beside the "
            f"parts, and the ledger that knows it is not under {ledger.state_dir}. Restore that ledger (ortdeploy "
            "state restore); or start over with ortdeploy apply --new-run"
        )
    with scratch_folder("state") as scratch:
        with open_ledger(scratch.path) as made:
            record = _Rebuilt(place, made, suffix).run(closed, removable=removable)
            copy = scratch.path / "copy.db"
            made.copy_output(_KEY, copy)
        ledger.take_over(output, copy)
    if isinstance(place, SharedFolder):
        write_marker(Path(place.shown), ledger.state_dir, record.deployment, record.job)
    log.info("ledger.rebuilt", output=place.shown, parts=len(record.parts), rows=record.rows)
    return ledger.output(output)


class _Rebuilt:
    """A new ledger of one output."""

    def __init__(self, place: SharedPlace, ledger: Ledger, suffix: str) -> None:
        self._place, self._ledger, self._suffix = place, ledger, suffix
        self._marks: dict[str, tuple[str, ...]] = {}

    def run(self, closed: list[tuple[str, PartTable]], *, removable: bool) -> OutputRecord:
        """Take over the copy, then the finished plans that it does not have; check all. Raises OrtdeployError."""
        copy = self._place.read(COPY)
        if copy is not None:
            file = self._ledger.state_dir / "taken.db"
            file.write_bytes(copy)
            self._ledger.take_over(_KEY, file)
        for digest, table in closed:
            self._fold(digest, table)
        record = self._record()
        check_output(self._ledger, record, self._suffix)
        self._check_files(record, removable=removable)
        return record

    def _record(self) -> OutputRecord:
        record = self._ledger.output(_KEY)
        if record is None:
            raise AssertionError("a plan was folded")
        return record

    def _fold(self, digest: str, table: PartTable) -> None:
        """Commit the parts of a finished plan, unless the ledger has them. Raises OrtdeployError.

        A copy is put beside the parts before their plan is closed, so it says of its last plan that it runs.
        """
        before = self._ledger.output(_KEY)
        next_part, rows = (0, 0) if before is None else (before.next_part, before.rows)
        after = table.first_number + len(table)
        is_known, is_ended = after <= next_part, before is None or after < next_part or before.status != "running"
        if is_known and is_ended:
            return
        digits = PART_DIGITS if before is None else before.part_digits
        receipts, ended = CommitLog(self._place, digest, table, suffix=self._suffix, digits=digits).closed()
        if is_known:
            self._ledger.end(_KEY, ended.status, ended.reason)
            return
        gap = next((part for part in table if part.number not in receipts), None)
        if (table.first_number, table.first_row) != (next_part, rows) or gap is not None:
            first, last = (next_part, table.first_number - 1) if gap is None else (gap.number, gap.number)
            raise OrtdeployError(
                f"the ledger of {self._place.shown} is lost, and nothing beside the parts says what is in the parts "
                f"{first} to {last}. Restore that ledger (ortdeploy state restore); or start over with ortdeploy "
                "apply --new-run"
            )
        self._ledger.begin(
            _KEY,
            made_by=ended.made_by,
            job=ended.job,
            run=ended.run,
            files=ended.files,
            first_row=table.first_row,
        )
        statistics: Mapping[str, object] = {} if before is None else before.statistics
        for part in table:
            receipt = receipts[part.number]
            statistics = sum_of_statistics(statistics, receipt.statistics)
            self._ledger.commit_part(
                _KEY,
                receipt.part,
                receipt.failed,
                provenance=receipt.origin,
                statistics=statistics,
                spans=receipt.spans,
            )
            self._marks[str(receipt.part.file)] = receipt.marks
        self._ledger.end(_KEY, ended.status, ended.reason, contents=ended.contents)

    def _check_files(self, record: OutputRecord, *, removable: bool) -> None:
        """Raise OrtdeployError if a file is not what was written; OSError."""
        files = [file for part in record.parts for file in part.files]

        def how(file: Part | Revision) -> str | None:
            written = Written(sha256=str(file.sha256), bytes=file.bytes, mtime_ns=file.mtime_ns or 0)
            try:
                is_right = self._place.holds(str(file.file), written, self._marks.get(str(file.file), ()))
            except FileNotFoundError:
                return None if removable else "is gone"
            return None if is_right else "is not what was written"

        for file, wrong in zip(files, in_threads(how, files, self._place.at_once), strict=True):
            if wrong is not None:
                raise OrtdeployError(
                    f"{self._place.shown}/{file.file} {wrong}, so the lost ledger is not made again. Restore the file "
                    "from a copy, then run ortdeploy finish; or bring the ledger back (ortdeploy state restore)"
                )
