"""Goes on with an unfinished run although some of its input files have changed or gone since it ended.

Files whose rows are all committed are done; of those without committed rows, the plan reads what is there. A plan looks
at the ledger before it has the output's lock, so what it concluded is concluded again here.
"""

from functools import partial
from itertools import islice

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import FileState, KnownFiles
from ortdeploy.jobs.input_contents import InputContents
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.plan.steps import JobInput, RunJob
from ortdeploy.results.results import Status
from ortdeploy.sources.catalogue import FILE_IS_ROW
from ortdeploy.sources.file_selection import KnownContents, Progress, accounted_for, holds_what_it_held


class Conclusion(Struct, frozen=True, kw_only=True):
    """What becomes of the files of an unfinished run: its first ones are `through`, those `dropped` were never read.

    `touched` files have another time and hold what they held. `kept`: the kept rows of a part stay.
    """

    through: tuple[str, ...]
    dropped: tuple[str, ...]
    touched: tuple[FileState, ...]
    kept: bool


def cut_off(context: JobContext, known: OutputRecord) -> OutputRecord:
    """Note which files of an unfinished run are done or left out, as the plan has them; return what is known then.

    Kept rows stay if their files are as they were. Raises OrtdeployError if committed rows come from other files than
    the plan assumes.
    """
    contents = InputContents.for_job(context)
    return carry_out_cut(context.step, context.plan.folder, context.output.ledger, known, contents)


def carry_out_cut(
    step: RunJob, folder: str, ledger: Ledger, known: OutputRecord, contents: InputContents
) -> OutputRecord:
    """Do the same for whoever has a plan's job and its folder."""
    found = conclude(step, folder, ledger, known)
    if found is None:
        return known
    begun = known.begun
    if begun is not None and not found.kept:
        reason = "input files of these rows have changed or gone"
        log.warning("part.begun_again", part=begun.part.number, rows=begun.part.rows, reason=reason)
    if found.touched:
        ledger.note_contents(known.output, contents.of(found.touched))
    if step.input.first_row == known.first_row and not found.dropped and found.kept:
        return known
    ledger.cut_off(known.output, found.through, step.input.first_row, found.dropped, kept=found.kept)
    return ledger.output(known.output) or known


def conclude(step: RunJob, folder: str, ledger: Ledger, known: OutputRecord) -> Conclusion | None:
    """Return what becomes of the files of an unfinished run; None if no run is unfinished. Nothing is noted.

    Raises OrtdeployError if committed rows come from other files than the plan assumes.
    """
    source = step.input
    if source.upstream is not None or known.status == Status.DONE:
        return None
    files = ledger.inputs(known.output)
    through = _through(source, known, files)
    if through is None:
        raise plan_again(step)
    same, touched = _same(source, KnownContents(folder, partial(ledger.contents, known.output)), files, len(through))
    if same < ledger.files_before(known.output, known.rows):
        raise plan_again(step)
    kept = known.begun is None or same >= ledger.files_before(known.output, known.begun.end)
    dropped = tuple(_left_out(files, same, source))
    return Conclusion(through=through, dropped=dropped, touched=tuple(touched), kept=kept)


def plan_again(step: RunJob) -> OrtdeployError:
    """Return the error of a plan that another run has overtaken."""
    return OrtdeployError(f"another run has worked on {step.output.shown} since the plan was made; plan again")


def _through(source: JobInput, known: OutputRecord, files: KnownFiles) -> tuple[str, ...] | None:
    """Return the files of the unfinished run that are done, as the plan has it; None if it is not so."""
    if source.first_row == known.first_row:
        return ()
    progress = Progress(first_row=known.first_row, rows=known.rows, by_file=source.format in FILE_IS_ROW)
    return accounted_for(files, progress) if known.rows == source.first_row else None


def _same(source: JobInput, known: KnownContents, files: KnownFiles, through: int) -> tuple[int, list[FileState]]:
    """Return how many first files of the unfinished run are `through`, or hold what they held and are in the plan.

    Also return those of them that have another time.
    """
    touched, count = [], through
    again, planned = {one.path for one in source.rerun}, iter(source.files)
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
