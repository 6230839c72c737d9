"""A plan whose parts many processes make: what the ledger and the decisions say of each of its parts."""

from bisect import bisect_left
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.jobs.reconcile_inputs import plan_again
from ortdeploy.ledger.damage import undamaged
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import PART_DIGITS, OutputRecord
from ortdeploy.parts.commit_log import CommitLog
from ortdeploy.parts.shared_place import place_of
from ortdeploy.plan.part_table import PartTable, PlannedPart, bound_digest, part_table
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.reports.proven import in_doubt
from ortdeploy.results.results import Status
from ortdeploy.sinks.catalogue import SINKS


def first_number(record: OutputRecord | None, step: RunJob) -> int:
    """Return the number of the plan's first part: the one after the parts of earlier, finished runs."""
    parts = () if record is None else record.parts
    return max((part.number + 1 for part in parts if part.start < step.input.first_row), default=0)


def standing_record(
    record: OutputRecord | None, step: RunJob, table: PartTable, decisions: CommitLog
) -> OutputRecord | None:
    """Return what the ledger knows of an output; None if the user took that away, and the plan begins anew.

    A ledger may remember parts of an output that was deleted; then they are gone, or others have been decided on since.
    Raises OrtdeployError if only some are gone, OSError.
    """
    if record is None or step.output.removable or table.first_row or decisions.is_closed():
        return record
    gone: list[str | None] = []
    there = 0
    for part in (one for one in record.parts if one.file is not None and is_planned(table, one.number)):
        receipt = decisions.decided(table.part(part.number))
        if receipt is not None and receipt.part.sha256 != part.sha256:
            return None
        if receipt is None and decisions.output.exists(str(part.file)):
            there += 1
        elif receipt is None:
            gone.append(part.file)
    if gone and there:
        raise OrtdeployError(f"{step.output.shown}/{gone[0]} was committed and is gone. Restore it from a copy")
    return None if gone else record


def is_planned(table: PartTable, number: int) -> bool:
    """Return whether a part of this number is one of the table."""
    return 0 <= number - table.first_number < len(table)


def decisions_of(plan: Plan, step: RunJob, record: OutputRecord | None, folder: Path) -> CommitLog:
    """Return the decisions about the parts of a job; nothing is touched."""
    return CommitLog(
        place_of(step.output.upload, folder, (plan.folder, *plan.roots)),
        bound_digest(plan, step),
        part_table(step, first_number(record, step)),
        suffix=SINKS[step.output.format].SUFFIX,
        digits=PART_DIGITS if record is None else record.part_digits,
        images=step.output.files,
        form=step.input.format,
    )


def is_accounted_for(ledger: Ledger, record: OutputRecord | None, step: RunJob, table: PartTable) -> bool:
    """Return whether a finished run has read every file and committed every part of a plan, whatever a later one does.

    Raises OrtdeployError if a part has other rows.
    """
    if record is None or not all(is_committed(record, part) for part in table):
        return False
    if len(table):
        return record.first_row >= table.end
    return record.status == Status.DONE and ledger.are_done(record.output, step.input.files)


def check_fits(record: OutputRecord, step: RunJob) -> None:
    """Raise OrtdeployError if a run has committed rows that the parts of a plan do not have, since it was made.

    Raises RefusedError if rows are in doubt, which would count as right with those of the plan.
    """
    if "doubt" in record.statistics:
        with undamaged():
            raise RefusedError(in_doubt(record.statistics["doubt"], step.output.shown))
    table = part_table(step, first_number(record, step))
    later = [part for part in record.parts if part.number >= table.first_number]
    is_other = record.status == Status.DONE and record.first_row != table.first_row
    if is_other or any(not is_planned(table, part.number) for part in later):
        raise plan_again(step)
    for part in table:
        if part.start >= record.rows:
            break
        is_committed(record, part)


def is_committed(record: OutputRecord | None, part: PlannedPart) -> bool:
    """Return whether a part is in the ledger. Raises OrtdeployError if it has other rows there."""
    parts = () if record is None else record.parts
    place = bisect_left(parts, part.number, key=lambda one: one.number)
    if place == len(parts) or parts[place].number != part.number:
        return False
    known = parts[place]
    if (known.start, known.start + known.rows) != (part.start, part.end):
        raise OrtdeployError(
            f"part {part.number} has the rows {known.start} to {known.start + known.rows - 1} in the ledger and "
            f"{part.start} to {part.end - 1} in the plan. Make the plan again"
        )
    return True
