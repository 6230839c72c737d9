"""Begins a job, or continues it where an earlier run stopped (`taking_up`), and takes the output over."""

from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files.atomic import make_durable_folder, remove_temporaries, sync_folder
from ortdeploy.files.gate import PathGuard
from ortdeploy.files.names import DECISIONS, is_there_now, name_aside
from ortdeploy.files.urls import decoded
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger.archived_outputs import put_aside_before
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.parts.begun_part import BegunPart
from ortdeploy.parts.committed import check_inputs
from ortdeploy.parts.output_owner import check_marker, write_marker
from ortdeploy.parts.position import Position

_ABANDONED = 3600.0
"""Seconds for which nobody has written what another run, which still goes on, would write in a moment."""


def resume(context: JobContext, begun_part: BegunPart) -> Position | None:
    """Take the output over and return where the job continues; None if nothing is left. Raises OrtdeployError."""
    step, position = context.step, Position()
    known = _known_output(context)
    check_marker(context.output.folder, context.output.ledger.state_dir, step.job, known)
    if known is not None:
        from ortdeploy.jobs.taking_up import take_up  # noqa: PLC0415  only where a job continues

        found = take_up(context, known, begun_part)
        if found is None:
            return None
        position = found
    check_inputs(step, context.plan.folder, PathGuard(context.roots))
    if context.output.upload is not None:
        context.output.upload.check(known=known is not None)
    make_durable_folder(context.output.folder)
    remove_temporaries(context.output.folder)
    if known is not None and known.status == "running":  # it was killed, perhaps while it noted something
        remove_temporaries(context.output.ledger.state_dir, seconds=_ABANDONED)
    begun_part.tidy()
    context.output.ledger.begin(
        context.output.name,
        made_by=context.made_by,
        job=step.job,
        run=context.run_id,
        files=step.input.files,
        first_row=step.input.first_row,
        gone=step.input.gone,
    )
    claim = None if context.output.upload is None else context.run_id
    write_marker(context.output.folder, context.output.ledger.state_dir, context.plan.deployment, step.job, claim)
    _check_alone(context, is_new=known is None)
    return position


def _check_alone(context: JobContext, *, is_new: bool) -> None:
    """Raise OrtdeployError if shards, or on a store another machine, have begun in the output since it was looked at.

    A shard that begins from now on finds that a run is at work, or if its ledger is another one, the marker. On a
    store, shards have made nothing that is not `new`.
    """
    if context.output.upload is None and _has_open_plans(context.output.folder, context.roots):
        raise OrtdeployError(
            f"shards have begun in {context.step.output.shown} as this run did. Let them make all parts, and run "
            "ortdeploy finish with their plan; or stop them, and start over with apply --new-run"
        )
    if context.output.upload is not None:
        context.output.upload.claim()
        if is_new:
            context.output.upload.check_alone()


def _has_open_plans(folder: Path, roots: tuple[str, ...]) -> bool:
    """Return whether shards have begun in an output and are not through. Raises OSError, OrtdeployError."""
    if not is_there_now(folder / DECISIONS):
        return False
    from ortdeploy.files.shared_folder import SharedFolder  # noqa: PLC0415  only where shards have worked
    from ortdeploy.ledger.open_plans import open_plans  # noqa: PLC0415

    return bool(open_plans(SharedFolder(folder, roots)))


def _known_output(context: JobContext) -> OutputRecord | None:
    """Put an old output aside, forget a lost one, and return what the ledger then knows of the output."""
    output, declared = context.output, context.step.output
    known = output.record()
    if known is None:
        if declared.aside is not None and (output.upload is not None or (output.folder / DECISIONS).is_dir()):
            _put_aside(context, output.folder.with_name(declared.aside))  # made by shards, unknown to this ledger
        else:
            output.check_alone()
        return None
    begun = put_aside_before(output.ledger, output.folder, known)
    is_new_run = begun is not None or known.run == declared.replaces
    if not is_new_run:
        output.check_alone()
    is_elsewhere = output.upload is not None and is_new_run  # shards may have made it, and nothing of it is here
    if begun is None and not is_elsewhere and not output.folder.exists() and not declared.removable:
        output.ledger.forget(output.name)
        return None
    if is_new_run:
        _put_aside(context, begun or name_aside(output.folder, known.started))
        return None
    return known


def _put_aside(context: JobContext, aside: Path) -> None:
    """Rename an old output to a name with the time of its beginning; nothing is overwritten.

    After a kill, its folder may have that name already.
    """
    output = context.output
    if output.folder.exists():
        output.folder.rename(aside)
        sync_folder(output.folder.parent)
    if output.upload is not None:
        output.upload.put_aside(decoded(aside.name).rpartition("/")[2])
    output.ledger.rename(output.name, output.ledger.key(aside))
    log.info("output.put_aside", output=context.step.output.shown, kept=aside.name)
