"""Finds rows of a job that were made from another job's rows, which that job has since run again or withdrawn.

The ledger has no table for this. Which rows a file of the other job still holds follows from its parts; which rows of
this job were read from the file follows from the spans of its inputs. The difference is to be withdrawn.
"""

import posixpath
from collections.abc import Callable, Collection, Sequence

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.changes import rows_in
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord, Part, Revision

RowNumbers = Callable[[str], Sequence[int]]
"""Returns the row of each line of a file of the job that is read, by the file's name. Raises OSError if it is gone."""


def superseded_rows(
    ledger: Ledger, output: str, read: str, folder: str, row_numbers: RowNumbers, *, through: bool
) -> tuple[int, ...]:
    """Return the rows of `output` that count, but were made from rows of the output `read` that no longer count.

    `folder` is the path of `read` from the manifest. `through`: all known files of it were read to the end; otherwise
    those that were not are left out. Raises OrtdeployError if a file that must be looked into is gone.
    """
    own, other = ledger.output(output), ledger.output(read)
    touched = [part for part in other.parts if part.revision or part.withdrawn] if other is not None else []
    if own is None or not touched:
        return ()
    failed = ledger.failed_rows(read)
    known = {one.state.path: one for one in ledger.inputs(output)}
    gone = _gone(own)
    found: list[int] = []
    for part in touched:
        for file in part.files:
            one = known.get(posixpath.join(folder, str(file.file)))
            if one is None or one.span is None or not (one.done or through):
                continue
            first_row, count = one.span
            live = _live(part, file, failed.get(part.number, ()))
            if count - len(live) > sum(row in gone for row in range(first_row, first_row + count)):
                lines = _lines(part, file, count, one.state.path, row_numbers)
                found += (first_row + at for at, row in enumerate(lines) if row not in live)
    return tuple(sorted(row for row in found if row not in gone and row >= own.forgotten.rows))


def _gone(own: OutputRecord) -> set[int]:
    return {row for part in own.parts for row in rows_in(part.withdrawn, part.start, part.end)}


def _live(part: Part, file: Part | Revision, failed: Collection[int]) -> set[int]:
    """Return the rows that count in a file of a part: those that gave a result, and that no later file holds."""
    revision = file.revision if isinstance(file, Revision) else 0
    rows = {*(file.rows if isinstance(file, Revision) else range(part.start, part.end))}
    rows.difference_update(failed, part.skipped_rows, rows_in(part.withdrawn, part.start, part.end))
    return rows.difference(*(one.rows for one in part.revisions if one.revision > revision))


def _lines(part: Part, file: Part | Revision, count: int, path: str, row_numbers: RowNumbers) -> Sequence[int]:
    """Return the row of each line of a file; `count` is how many lines it had when it was read.

    The file itself is looked into only if rows of its part failed or were skipped.
    """
    if isinstance(file, Revision):
        return sorted(file.rows)
    if count == part.rows:
        return range(part.start, part.end)
    try:
        lines = row_numbers(str(file.file))
    except OSError as error:
        raise OrtdeployError(
            f"rows of {path} have run again or were withdrawn, and which of its lines these are cannot be told: "
            f"{error.strerror or error}. Restore it"
        ) from error
    if len(lines) != count:
        raise OrtdeployError(f"{path} has {len(lines)} rows and had {count} when it was read. Restore it from a copy")
    return lines
