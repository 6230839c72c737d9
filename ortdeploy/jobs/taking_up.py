"""Goes on with the output of an earlier run: completes what that has left, and finds where the job continues."""

from collections.abc import Container
from itertools import count
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.jobs.error_budget import earlier_of
from ortdeploy.jobs.expected import end_of_input
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.reconcile_inputs import cut_off, plan_again
from ortdeploy.jobs.row_numbers import check_numbers
from ortdeploy.ledger.damage import undamaged
from ortdeploy.ledger.records import Begun, FailedBefore, OutputRecord
from ortdeploy.parts.begun_part import BegunPart
from ortdeploy.parts.committed import check_record
from ortdeploy.parts.position import Position
from ortdeploy.reports.proven import in_doubt
from ortdeploy.results.results import Status

if TYPE_CHECKING:
    from ortdeploy.pipelines.state import State


def take_up(context: JobContext, known: OutputRecord, begun_part: BegunPart) -> Position | None:
    """Return where a job continues; None if nothing is left. Raises OrtdeployError."""
    if "doubt" in known.statistics:
        with undamaged():
            raise RefusedError(in_doubt(known.statistics["doubt"], context.step.output.shown))
    if _is_of_another(context, known) and context.step.output.on_upgrade != "continue":
        raise OrtdeployError(f"{context.step.output.shown} holds parts of another plan")
    if _is_finished(context, known):
        from ortdeploy.parts.left_over import complete_left_over  # noqa: PLC0415  only where nothing is left to run

        check_record(context.output, context.step.output, known)
        complete_left_over(context.output.ledger, context.output.folder, context.step.output)
        return None
    return _position(context, cut_off(context, context.recover()), begun_part)


def _is_of_another(context: JobContext, known: OutputRecord) -> bool:
    """Return whether another deployment has made what is there; an unfinished run may have left no rows."""
    is_bare = known.status != Status.DONE and known.is_bare
    return dict(known.identity) != dict(context.step.identity) and not is_bare


def _is_finished(context: JobContext, known: OutputRecord) -> bool:
    """Return whether every file of the plan is accounted for, by this run or by another one meanwhile."""
    upstream = context.step.input.upstream
    if (upstream is not None and upstream.superseded) or context.step.input.unreadable:
        return False
    return known.status == Status.DONE and context.output.ledger.are_done(context.output.name, context.step.input.files)


def _position(context: JobContext, known: OutputRecord, begun_part: BegunPart) -> Position:
    output = context.step.output
    is_later = output.changed and known.rows != output.committed_rows
    if is_later or known.first_row != context.step.input.first_row:
        raise plan_again(context.step)
    begun_part.revision = known.revision
    begun = begun_part.take_up(known, end_of_input(context.step, known.statistics))
    failed = _failed(context, begun)
    check_numbers(context, failed)
    known = replace(known, begun=begun)
    done = known.rows if begun is None else begun.end
    with undamaged():
        state = known.statistics.get("state") if begun is None else begun.state
        unpacked = None if state is None else _unpacked(state)
    return Position(
        done=done,
        part=known.next_part,
        part_digits=known.part_digits,
        failed=known.failed,
        failed_earlier=earlier_of(context.step, failed),
        failed_last=0 if context.step.errors.max_consecutive is None else _failed_last(failed, done),
        statistics=known.statistics if dict(known.identity) == dict(context.step.identity) or known.rows else {},
        state=unpacked,
    )


def _unpacked(state: str) -> "State":
    from ortdeploy.pipelines.state import unpack_state  # noqa: PLC0415  few pipelines have a state

    return unpack_state(state)


def _failed(context: JobContext, begun: Begun | None) -> dict[int, FailedBefore]:
    """Return the rows that failed before the row with which the job continues."""
    of_parts = context.output.ledger.failed_rows(context.output.name).values()
    of_begun = {} if begun is None else context.output.ledger.failed_of_begun(context.output.name, begun)
    return {row: one for rows in (*of_parts, of_begun) for row, one in rows.items()}


def _failed_last(failed: Container[int], done: int) -> int:
    """Return how many rows in a row failed just before the row with which the job continues."""
    return next(number for number in count() if done - 1 - number not in failed)
