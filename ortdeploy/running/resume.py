"""Begins a job, or continues it where the ledger says that an earlier run stopped, and takes the output over."""

from collections.abc import Mapping
from dataclasses import field, replace
from itertools import count
from pathlib import Path
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files.atomic import make_durable_folder, remove_temporaries, sync_folder
from ortdeploy.files.gate import Fence
from ortdeploy.files.names import name_aside
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import DECISIONS
from ortdeploy.files.urls import decoded
from ortdeploy.ledger.damage import undamaged
from ortdeploy.ledger.merges import complete_merges, complete_replacements
from ortdeploy.ledger.open_parts import open_plans
from ortdeploy.ledger.opening import MARKER
from ortdeploy.ledger.put_aside import put_aside_before
from ortdeploy.ledger.records import PART_DIGITS, Begun, OutputRecord
from ortdeploy.pipelines.state import State, unpack_state
from ortdeploy.records import record
from ortdeploy.results.results import Status
from ortdeploy.running.begun_part import BegunPart
from ortdeploy.running.committed import check_inputs, check_parts, check_record
from ortdeploy.running.cut_off import cut_off, plan_again
from ortdeploy.running.job_context import JobContext
from ortdeploy.running.left_over import complete_left_over
from ortdeploy.running.marker import check_marker, write_marker

_ABANDONED = 3600.0
"""Seconds for which nobody has written what another run, which still goes on, would write in a moment."""


@record
class Position:
    """Where a job continues: after `done` rows, with the part of number `part`.

    `failed` of these rows failed, the last `failed_last` of them one after the other. `statistics` are those of earlier
    runs, `state` is what the next row takes.
    """

    done: int = 0
    part: int = 0
    part_digits: int = PART_DIGITS
    failed: int = 0
    failed_last: int = 0
    statistics: Mapping[str, Any] = field(default_factory=dict)
    state: State | None = None


def resume(context: JobContext, begun_part: BegunPart) -> Position | None:
    """Take the output over and return where the job continues; None if nothing is left. Raises OrtdeployError."""
    step, position = context.step, Position()
    known = _known_output(context)
    check_marker(context.folder, context.ledger.state_dir, step.job, known)
    if known is not None:
        if _is_of_another(context, known) and step.output.on_upgrade != "continue":
            raise OrtdeployError(f"{step.output.shown} holds parts of another plan")
        if _is_finished(context, known):
            complete_left_over(context.ledger, context.folder, step.output)
            return None
        check_parts(context)
        make_durable_folder(context.folder)  # files that go from it are gone with it if it was carried away
        complete_merges(context.ledger, context.output, context.folder, known.parts, context.send)
        complete_replacements(context.ledger, context.output, context.folder, context.send)
        if begun_part.complete(known):
            known = context.ledger.output(context.output) or known
        known = cut_off(context, known)
        position = _take_up(context, known, begun_part)
    check_inputs(step, context.plan.folder, Fence((context.plan.folder, *context.plan.roots)))
    if context.upload is not None:
        context.upload.check(known=known is not None)
    make_durable_folder(context.folder)
    remove_temporaries(context.folder)
    if known is not None and known.status == "running":  # it was killed, perhaps while it noted something
        remove_temporaries(context.ledger.state_dir, seconds=_ABANDONED)
    begun_part.tidy()
    context.ledger.begin(
        context.output,
        made_by=context.made_by,
        job=step.job,
        run=context.run_id,
        files=step.input.files,
        gone=step.input.gone,
    )
    write_marker(context.folder, context.ledger.state_dir, context.plan.deployment, step.job)
    _check_alone(context, is_new=known is None)
    return position


def _is_of_another(context: JobContext, known: OutputRecord) -> bool:
    """Return whether another deployment has made what is there; an unfinished run may have left no rows."""
    is_bare = known.status != Status.DONE and known.is_bare
    return dict(known.identity) != dict(context.step.identity) and not is_bare


def _check_alone(context: JobContext, *, is_new: bool) -> None:
    """Raise OrtdeployError if shards have begun in the output since it was looked at.

    A shard that begins from now on finds that a run is at work, or if its ledger is another one, the marker. On a
    store, shards have made nothing that is not `new`.
    """
    if context.upload is None and open_plans(SharedFolder(context.folder)):
        raise OrtdeployError(
            f"shards have begun in {context.step.output.shown} as this run did. Let them make all parts, and run "
            "ortdeploy finish with their plan; or stop them, and start over with apply --new-run"
        )
    if context.upload is not None and is_new:
        context.upload.send(MARKER.__eq__)
        context.upload.check_alone()


def _known_output(context: JobContext) -> OutputRecord | None:
    """Put an old output aside, forget a lost one, and return what the ledger then knows of the output."""
    known = context.ledger.output(context.output)
    if known is None:
        aside = context.step.output.aside
        if aside is not None and (context.upload is not None or (context.folder / DECISIONS).is_dir()):
            _put_aside(context, context.folder.with_name(aside))  # made by shards, unknown to this ledger
        elif context.upload is not None:
            context.upload.check_alone()
        return None
    begun = put_aside_before(context.ledger, context.folder, known)
    is_new_run = begun is not None or known.run == context.step.output.replaces
    if context.upload is not None and not is_new_run:
        context.upload.check_alone()
    is_elsewhere = context.upload is not None and is_new_run  # shards may have made it, and nothing of it is here
    if begun is None and not is_elsewhere and not context.folder.exists() and not context.step.output.removable:
        context.ledger.forget(context.output)
        return None
    if is_new_run:
        _put_aside(context, begun or name_aside(context.folder, known.started))
        return None
    check_record(context, known)
    return known


def _put_aside(context: JobContext, aside: Path) -> None:
    """Rename an old output to a name with the time of its beginning; nothing is overwritten.

    After a kill, its folder may have that name already.
    """
    if context.folder.exists():
        context.folder.rename(aside)
        sync_folder(context.folder.parent)
    if context.upload is not None:
        context.upload.put_aside(decoded(aside.name).rpartition("/")[2])
    context.ledger.rename(context.output, context.ledger.key(aside))
    log.info("output.put_aside", output=context.step.output.shown, kept=aside.name)


def _is_finished(context: JobContext, known: OutputRecord) -> bool:
    """Return whether every file of the plan is accounted for, by this run or by another one meanwhile."""
    upstream = context.step.input.upstream
    if (upstream is not None and upstream.superseded) or context.step.input.unreadable:
        return False
    return known.status == Status.DONE and context.ledger.are_done(context.output, context.step.input.files)


def _take_up(context: JobContext, known: OutputRecord, begun_part: BegunPart) -> Position:
    output = context.step.output
    is_later = output.changed and known.rows != output.committed_rows
    if is_later or known.first_row != context.step.input.first_row:
        raise plan_again(context)
    begun_part.revision = known.revision
    begun = begun_part.take_up(known)
    known = replace(known, begun=begun)
    done = known.rows if begun is None else begun.end
    with undamaged():
        state = known.statistics.get("state") if begun is None else begun.state
        unpacked = None if state is None else unpack_state(state)
    return Position(
        done=done,
        part=known.next_part,
        part_digits=known.part_digits,
        failed=known.failed,
        failed_last=_failed_last(context, done, begun),
        statistics=known.statistics if dict(known.identity) == dict(context.step.identity) or known.rows else {},
        state=unpacked,
    )


def _failed_last(context: JobContext, done: int, begun: Begun | None) -> int:
    """Return how many rows in a row failed just before the row with which the job continues."""
    if context.step.errors.max_consecutive is None:
        return 0
    failed = {row for rows in context.ledger.failed_rows(context.output).values() for row in rows}
    if begun is not None:
        failed.update(context.ledger.failed_of_begun(context.output, begun))
    return next(number for number in count() if done - 1 - number not in failed)
