"""Makes the ledger forget parts that have been done and carried away for as long as the manifest says.

Only the first parts of an output are forgotten, in order, and never the last one, from which counts, row numbers and
names of parts continue. A part is forgotten if none of its files is there, it was written long enough ago, and the
input files of its rows were seen gone and are still gone. A forgotten input file that comes back runs again, so one
that is there is never forgotten, nor one that may be on a device that is not mounted. Nor is a part that a job still
has to read: that job would miss its rows and never learn that they existed. Parts behind one that is kept wait for it,
because counts are kept of the first parts only; the log says what they wait for.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import KnownFile
from ortdeploy.files.urls import is_url
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger import open_plans
from ortdeploy.ledger.part_ages import ages_of
from ortdeploy.ledger.published_files import deliveries, reader_of
from ortdeploy.ledger.records import OutputRecord, Part, Span
from ortdeploy.ledger.stale_rows import superseded_rows
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.files import UnmountedFolders, full_path, shown


def forget_old_parts(context: JobContext) -> None:
    """Forget the parts of an output that its `keep` lets forget."""
    output, record = context.step.output, context.output.record()
    if output.keep is None or not output.removable or record is None or not record.parts or record.rewrites:
        return
    if (context.output.folder / open_plans.FOLDER).is_dir():  # plans of shards name parts by their numbers
        return
    inputs = context.output.ledger.inputs(context.output.name)
    may_come_back = _may_come_back(context)
    held = [one for one in inputs if may_come_back(one)]
    kept = _rows_to_keep(context, record, held)
    old = _carried_away(context, record, output.keep)
    first_kept = kept[0][0] if kept else record.rows
    parts = [part for part, first in zip(old, record.parts, strict=False) if part is first and part.end <= first_kept]
    _tell_what_waits(old[len(parts) :], record.parts[len(parts)], kept, held)
    if not parts:
        return
    end = parts[-1].end
    files = [one.state.path for one in inputs if one not in held and one.span is not None and sum(one.span) <= end]
    context.output.ledger.forget_parts(context.output.name, parts, files)
    log.info("parts.forgotten", parts=len(parts), rows=sum(part.rows for part in parts), files=len(files))


def _may_come_back(context: JobContext) -> Callable[[KnownFile], bool]:
    """Return a function that tells whether a run may find an input file again, which must then be known.

    A file of another job's rows is found until that job has forgotten it, even if it was carried away.
    """
    upstream, folder = context.step.input.upstream, context.plan.folder
    if upstream is not None:
        place = Path(folder) / upstream.output
        record = context.output.ledger.output(context.output.ledger.key(place))
        delivered = {one.state.path for one in deliveries(record, shown(str(place.absolute()), folder))}
        return lambda one: not one.done or one.state.path in delivered
    present = {state.path for one in context.plan.inputs if one.job == context.step.job for state in one.files}
    unmounted = UnmountedFolders(folder, context.step.input.patterns, present)
    return lambda one: (
        not one.gone
        or one.state.path in present
        or _is_there(folder, one.state.path)
        or unmounted.may_hold(one.state.path)
    )


def _is_there(folder: str, path: str) -> bool:
    """Return whether an input file is there, whether or not this run was to read it."""
    return not is_url(path) and os.path.lexists(full_path(folder, path))


def _spans(held: Sequence[KnownFile]) -> list[Span]:
    """Return the rows of files that are not forgotten; of a file whose rows are unknown, all rows."""
    return [one.span or (0, 1) for one in held]


def _carried_away(context: JobContext, record: OutputRecord, keep: float) -> list[Part]:
    """Return the parts but the last one of which no file is there, and all were written over `keep` seconds ago."""
    return [
        part
        for part, age in zip(record.parts[:-1], ages_of(record.parts, time.time()), strict=False)
        if age > keep and not any(os.path.lexists(context.output.folder / str(file.file)) for file in part.files)
    ]


def _rows_to_keep(context: JobContext, record: OutputRecord, held: Sequence[KnownFile]) -> list[Span]:
    """Return the rows to remember: of files that may come back, and those that are still to be worked on."""
    kept = [*_spans(held), *record.leaving, *((one.first_row, one.rows) for one in record.reruns)]
    kept += [(part.start, part.rows) for part in _parts_to_read(context, record)]
    return sorted(span for span in kept if span[1])


def _tell_what_waits(parts: Sequence[Part], first: Part, kept: Sequence[Span], held: Sequence[KnownFile]) -> None:
    """Log how many parts would be forgotten if the first kept one did not lie before them, and what keeps that."""
    starts, ends = [start for start, _ in kept], list(accumulate(map(sum, kept), max))
    free = sum(not (at := bisect_left(starts, part.end)) or ends[at - 1] <= part.start for part in parts)
    if free:
        by = next((one.state.path for one in held if one.span and _share_rows(one.span, first)), None)
        log.info("parts.held_up", parts=free, part=first.number, input=by)


def _share_rows(span: Span, part: Part) -> bool:
    return span[0] < part.end and part.start < sum(span)


def _parts_to_read(context: JobContext, record: OutputRecord) -> Iterator[Part]:
    """Yield the parts that another job still has to work on.

    It has not finished reading a file of theirs, or it still has rows that were made of rows which no longer count.
    """
    folder, ledger = Path(context.plan.folder), context.output.ledger
    outputs = {job: ledger.key(folder / path) for job, path in context.step.output.readers.items()}
    readers = [reader_of(ledger, output, job) for job, output in outputs.items()]
    own = shown(str(context.output.folder.absolute()), context.plan.folder)
    needed = {str(one.file.file) for one in deliveries(record, own) if any(reader.needs(one) for reader in readers)}
    yield from (part for part in record.parts if any(file.file in needed for file in part.files))
    if any(_has_superseded_rows(context, output, own) for output in outputs.values()):
        yield from (part for part in record.parts if part.revision or part.withdrawn)


def _has_superseded_rows(context: JobContext, reader: str, own: str) -> bool:
    """Return whether a reader's output has rows of this one that no longer count; True if that cannot be told now."""
    sink = SINKS[context.step.output.format]
    try:
        rows = superseded_rows(
            context.output.ledger,
            reader,
            context.output.name,
            own,
            lambda name: sink.row_numbers(context.output.folder / name),
            through=True,
        )
    except OrtdeployError:
        return True
    return bool(rows)
