"""Checks what a job has committed: the ledger's record against itself, against the files and the input."""

from collections.abc import Iterable
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.known_digests import DigestCache
from ortdeploy.ledger.check import check_output
from ortdeploy.ledger.ledger import OutputRecord, Part, find_damage, undamaged
from ortdeploy.plan.steps import RunJob
from ortdeploy.running.job_context import JobContext
from ortdeploy.running.statistics import check_statistics
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.files import find_changed


def committed_parts(context: JobContext) -> tuple[Part, ...]:
    """Return the parts that are committed."""
    record = context.ledger.output(context.output)
    return record.parts if record else ()


def check_record(context: JobContext, known: OutputRecord) -> None:
    """Raise OrtdeployError if the ledger contradicts itself about the output; nothing was touched yet."""
    check_output(context.ledger, known, SINKS[context.step.output.format].SUFFIX)
    with undamaged():
        check_statistics(known.statistics)


def check_parts(context: JobContext, when: str = "") -> None:
    """Raise OrtdeployError if a committed part is not what was written."""
    digests = DigestCache(context.ledger.state_dir)
    merges = context.ledger.merges(context.output)
    removable = context.step.output.removable
    damage = find_damage(context.folder, committed_parts(context), merges, digests.digest, removable=removable)
    if damage is not None:
        raise OrtdeployError(f"{context.step.output.shown}/{damage}{when}. Bring it back from a copy")


def taken_bytes(folder: Path, parts: Iterable[Part]) -> int:
    """Return what the files of parts take; those that were carried away take nothing."""
    return sum(file.bytes for part in parts for file in part.files if (folder / str(file.file)).exists())


def check_inputs(step: RunJob, folder: str) -> None:
    """Raise OrtdeployError if an input file is gone, or not what it was when the plan was made."""
    changed = find_changed(step.input.files, folder, step.input.patterns)
    if changed is not None:
        raise OrtdeployError(
            f"{changed} is not what it was when the plan was made: it changed while it was read. Apply with "
            "--new-run to start over from what it is now"
        )
