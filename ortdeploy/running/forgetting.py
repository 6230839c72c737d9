"""Makes the ledger forget parts that have been done and carried away for as long as the manifest says.

Only the first parts of an output are forgotten, in order, and never the last one, from which counts, row numbers and
names of parts continue. A part is forgotten if none of its files is there, it was written long enough ago, and the
input files of its rows were seen gone and are still gone. A forgotten input file that comes back runs again, so one
that is there is never forgotten.
"""

import math
import os
import time
from collections.abc import Collection, Iterator, Sequence

from ortdeploy.events import log
from ortdeploy.facts.data import KnownFile
from ortdeploy.files.urls import is_url
from ortdeploy.ledger import open_parts
from ortdeploy.ledger.records import OutputRecord, Part, Span
from ortdeploy.running.job_context import JobContext
from ortdeploy.sources.files import full_path


def forget_old_parts(context: JobContext) -> None:
    """Forget the parts of an output that its `keep` lets forget."""
    output, record = context.step.output, context.ledger.output(context.output)
    if output.keep is None or not output.removable or record is None or record.replacements:
        return
    if (context.folder / open_parts.FOLDER).is_dir():  # plans of shards name parts by their numbers
        return
    inputs = context.ledger.inputs(context.output)
    present = {state.path for one in context.plan.inputs if one.job == context.step.job for state in one.files}
    held = [one for one in inputs if not one.gone or _is_there(context, one.state.path, present)]
    parts = list(_old_parts(context, record, _spans(held), time.time_ns() - int(output.keep * 1e9)))
    if not parts:
        return
    end = parts[-1].end
    files = [one.state.path for one in inputs if one not in held and one.span is not None and sum(one.span) <= end]
    context.ledger.forget_parts(context.output, parts, files)
    log.info("parts.forgotten", parts=len(parts), rows=sum(part.rows for part in parts), files=len(files))


def _is_there(context: JobContext, path: str, present: Collection[str]) -> bool:
    """Return whether an input file is there, whether or not this run was to read it."""
    return path in present or (not is_url(path) and os.path.lexists(full_path(context.plan.folder, path)))


def _spans(held: Sequence[KnownFile]) -> list[Span]:
    """Return the rows of files that are not forgotten; of a file whose rows are unknown, all rows."""
    return [one.span or (0, 1) for one in held]


def _old_parts(context: JobContext, record: OutputRecord, held: Sequence[Span], before: int) -> Iterator[Part]:
    """Yield the first parts that may be forgotten, whose files were all written before a time."""
    kept = [*held, *record.leaving, *((one.first_row, one.rows) for one in record.reruns)]
    first_kept = min((first_row for first_row, rows in kept if rows), default=record.rows)
    for part, written in zip(record.parts[:-1], _times(record.parts), strict=False):
        is_away = not any(os.path.lexists(context.folder / str(file.file)) for file in part.files)
        if not (written < before and is_away and part.end <= first_kept):
            return
        yield part


def _times(parts: Sequence[Part]) -> list[float]:
    """Return when each part was last written; without a file, the time of the part after it; infinity if unknown."""
    found: list[float] = []
    behind = math.inf
    for part in reversed(parts):
        known = [math.inf if file.mtime_ns is None else float(file.mtime_ns) for file in part.files]
        behind = max(known, default=behind)
        found.append(behind)
    return found[::-1]
