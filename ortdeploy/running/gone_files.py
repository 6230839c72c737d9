"""Notes the input files that have gone, for jobs without work: a file that comes back changed is a new file."""

from pathlib import Path

import structlog

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.ledger import open_ledger, output_key
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.plan.steps import Plan

log = structlog.get_logger()


def note_gone_files(plan: Plan, state_dir: Path) -> None:
    """Write into the ledger which input files have gone since the last apply; if that fails, the next apply does it."""
    for job in (job for job in plan.finished if job.gone):
        output = output_key(Path(plan.folder) / job.path, state_dir)
        try:
            with hold_output(state_dir, output), open_ledger(state_dir) as ledger:
                ledger.note_gone(output, job.gone)
        except OrtdeployError as error:
            log.warning("files.not_noted", job=job.job, reason=str(error))
