"""Notes which input files are gone, for jobs without work: one that comes back changed counts as a new file."""

from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.ledger.records import output_key
from ortdeploy.plan.steps import Plan


def note_gone_files(plan: Plan, state_dir: Path) -> None:
    """Note in the ledger which input files are gone since the last apply; if that fails, the next apply does it."""
    for job in (job for job in plan.finished if job.gone):
        output = output_key(Path(plan.folder) / job.path, state_dir)
        try:
            with hold_output(state_dir, output), open_ledger(state_dir) as ledger:
                ledger.note_gone(output, job.gone)
        except OrtdeployError as error:
            log.warning("files.not_noted", job=job.job, reason=str(error))
