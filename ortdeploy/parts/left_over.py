"""Completes what a killed `compact` or `retry` has left in an output whose job has nothing else to do.

Of shards that were killed behind the end of their plan, what they have left is deleted.
"""

from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.events import log
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.rewrites import is_left_over
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.parts.recovery import recover
from ortdeploy.plan.steps import JobOutput
from ortdeploy.reports.report import renew_report, report_written


def complete_left_over(ledger: Ledger, folder: Path, output: JobOutput) -> None:
    """Complete whatever is left, and write the report anew if there was anything. Raises OrtdeployError."""
    known = ledger.output(ledger.key(folder))
    if known is None:
        return
    try:
        begun = len(known.rewrites)
        if begun or is_left_over(folder):
            _complete(ledger, folder, output)
            log.info("output.completed", output=output.shown, parts=begun)
    except OSError as error:
        raise OrtdeployError(failure_at(folder, error)) from error


def add_reports(ledger: Ledger, folder: Path, output: JobOutput) -> None:
    """Write the report in the forms that are asked for, from that of the last run. Raises OrtdeployError."""
    known = ledger.output(ledger.key(folder))
    if known is None:
        return
    upload = OpenOutput.of(ledger, folder, output.upload).upload
    why_none = "the page was asked for when the job had ended; the next run shows rows"
    try:
        renew_report(folder, known, ledger.failures(known.output), output.reports, why_none=why_none)
        if upload is not None:
            upload.send()
    except OSError as error:
        raise OrtdeployError(failure_at(folder, error)) from error


def tidy_shards(folder: Path, output: JobOutput, roots: tuple[str, ...]) -> None:
    """Delete what shards that were killed have left of plans that are closed. Raises OrtdeployError."""
    from ortdeploy.ledger.open_plans import tidy  # noqa: PLC0415  only where something is left
    from ortdeploy.parts.shared_place import place_of  # noqa: PLC0415  only where something is left

    try:
        tidy(place_of(output.upload, folder, roots))
    except OSError as error:
        raise OrtdeployError(failure_at(folder, error)) from error


def _complete(ledger: Ledger, folder: Path, output: JobOutput) -> None:
    opened = OpenOutput.of(ledger, folder, output.upload)
    known = recover(opened, output)
    renew_report(folder, known, ledger.failures(known.output), output.reports)
    if opened.upload is not None:
        opened.upload.send()
    report_written(folder)
