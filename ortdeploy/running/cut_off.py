"""Goes on with an unfinished run although some of its input files have changed or gone since it ended.

Files whose rows are all committed are done; of those without committed rows, the plan reads what is there. A plan looks
at the ledger before it has the output's lock, so what it concluded is concluded again here.
"""

from functools import partial
from itertools import islice

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import FileState, KnownFiles
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.plan.steps import JobInput
from ortdeploy.results.results import Status
from ortdeploy.running.input_contents import InputContents
from ortdeploy.running.job_context import JobContext
from ortdeploy.sources.arrivals import KnownContents, Progress, accounted_for, holds_what_it_held
from ortdeploy.sources.catalogue import FILE_IS_ROW


def cut_off(context: JobContext, known: OutputRecord) -> OutputRecord:
    """Note which files of an unfinished run are done or left out, as the plan has them; return what is known then.

    Kept rows stay if their files are as they were. Raises OrtdeployError if committed rows come from other files than
    the plan assumes.
    """
    source, ledger, output = context.step.input, context.ledger, context.output
    if source.upstream is not None or known.status == Status.DONE:
        return known
    files = ledger.inputs(output)
    through = _through(source, known, files)
    if through is None:
        raise plan_again(context)
    same, touched = _same(context, files, len(through))
    if same < ledger.files_before(output, known.rows):
        raise plan_again(context)
    begun = known.begun
    kept = begun is None or same >= ledger.files_before(output, begun.end)
    if begun is not None and not kept:
        reason = "input files of these rows have changed or gone"
        log.warning("part.begun_again", part=begun.part.number, rows=begun.part.rows, reason=reason)
    dropped = _left_out(files, same, source)
    if touched:
        ledger.note_contents(output, InputContents.for_job(context).of(touched))
    if source.first_row == known.first_row and not dropped and kept:
        return known
    ledger.cut_off(output, through, source.first_row, dropped, kept=kept)
    return ledger.output(output) or known


def plan_again(context: JobContext) -> OrtdeployError:
    """Return the error of a plan that another run has overtaken."""
    shown = context.step.output.shown
    return OrtdeployError(f"another run has worked on {shown} since the plan was made; plan again")


def _through(source: JobInput, known: OutputRecord, files: KnownFiles) -> tuple[str, ...] | None:
    """Return the files of the unfinished run that are done, as the plan has it; None if it is not so."""
    if source.first_row == known.first_row:
        return ()
    progress = Progress(first_row=known.first_row, rows=known.rows, by_file=source.format in FILE_IS_ROW)
    return accounted_for(files, progress) if known.rows == source.first_row else None


def _same(context: JobContext, files: KnownFiles, through: int) -> tuple[int, list[FileState]]:
    """Return how many first files of the unfinished run are `through`, or hold what they held and are in the plan.

    Also return those of them that have another time.
    """
    source, touched, count = context.step.input, [], through
    again, planned = {one.path for one in source.rerun}, iter(source.files)
    known = KnownContents(context.plan.folder, partial(context.ledger.contents, context.output))
    for cells in islice(files.underway(), through, None):
        if cells[0] not in again:
            state = next(planned, None)
            if state is None or state.path != cells[0]:
                break
            if cells[:3] != state:
                one = files.make(cells)
                if not holds_what_it_held(one, state, known.are_in):
                    break
                touched += [] if one.is_known(state) else [state]
        count += 1
    return count, touched


def _left_out(files: KnownFiles, same: int, source: JobInput) -> list[str]:
    """Return the files of the unfinished run, behind those that are the `same`, that the plan does not read."""
    left = [cells[0] for number, cells in enumerate(files.underway()) if number >= same]
    planned = {state.path for state in (*source.files, *source.rerun)} if left else set()
    return [path for path in left if path not in planned]
