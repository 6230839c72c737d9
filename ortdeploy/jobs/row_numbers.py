"""Compares the numbers of rows with those of the version of ortdeploy that began an output.

Versions have counted the rows of CSV otherwise: 0.1.0 counted blank lines, and took what is behind a broken record for
a part of it. Where that makes a difference, a row has failed, so the place of a failed row tells whether its number is
the same.
"""

from collections.abc import Mapping

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.feeds.row_sources import open_rows
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger.records import FailedBefore

_COUNTED_OTHERWISE = frozenset({"csv"})
"""Formats whose rows a version has counted otherwise."""

_BROKEN = frozenset({"not-csv", "cell-count"})
"""Codes of records that may have had more lines."""


def check_numbers(context: JobContext, failed: Mapping[int, FailedBefore]) -> None:
    """Look for the last of some failed rows where it was. Raises OrtdeployError if another row has its number.

    If its record is broken, what is said of it tells which lines are a part of it.
    """
    step = context.step
    found = [row for row, one in failed.items() if row >= step.input.first_row and not one.unreadable and one.path]
    if step.input.format not in _COUNTED_OTHERWISE or not found:
        return
    row = max(found)
    before = failed[row]
    with open_rows(step, context.plan.folder, (row,), context.output.ledger.state_dir) as source:
        for block in source.blocks(row, [1]):
            hold_place(row, before.source, block.source(0) if block.rows else block.failed[0].source)
            for now in block.failed:
                if now.code in _BROKEN and now.message != before.message:
                    raise OrtdeployError(f"row {row} ({now.source}) has other lines for this version, {_OTHERWISE}")


def hold_place(row: int, before: str, now: str) -> None:
    """Raise OrtdeployError if a failed row is at another place in its file than when it failed."""
    if before != now:
        raise OrtdeployError(f"row {row} failed at {before}, and is at {now} for this version, {_OTHERWISE}")


_OTHERWISE = (
    "which counts the rows of CSV otherwise: rows would be lost or run twice. Use the version that began the output, "
    "or apply with --new-run"
)
