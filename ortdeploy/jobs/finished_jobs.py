"""Ends jobs that have nothing to run, once what killed processes have left in their outputs is seen to."""

from pathlib import Path

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import bound
from ortdeploy.files.names import REPORT
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.parts.left_over import add_reports, complete_left_over, tidy_shards
from ortdeploy.plan.steps import FinishedJob, Plan
from ortdeploy.results.results import JobResult, Status


def completed(plan: Plan, job: FinishedJob, ledger: Ledger) -> JobResult:
    """Complete what was begun in the output of a job that the plan found finished, and return its result."""
    if job.left_over is None:
        return nothing_to_do(job)
    folder = Path(plan.folder) / job.path
    try:
        complete_left_over(ledger, folder, job.left_over)
        tidy_shards(folder, job.left_over, (plan.folder, *plan.roots))
        if job.unwritten:
            add_reports(ledger, folder, job.left_over)
    except OrtdeployError as error:
        from ortdeploy.jobs.job_report import log_end  # noqa: PLC0415  finished jobs seldom fail

        failed = replace(nothing_to_do(job), status=Status.FAILED, reason=str(error))
        with bound(job=job.job):
            log_end(failed)
        return failed
    if job.unwritten:
        reason = f"it is finished; its report was written as {' and '.join(job.unwritten)} too"
        return replace(nothing_to_do(job), reason=reason)
    return nothing_to_do(job)


def nothing_to_do(job: FinishedJob) -> JobResult:
    """Return the result of a job that has nothing to run."""
    reason = job.waiting
    if job.unmade and reason is None:
        forms = " and ".join(job.unmade)
        reason = (
            f"it is finished; {forms} cannot be written, because {REPORT} is gone. The next run with rows writes both"
        )
    return JobResult(
        job=job.job,
        status=Status.NOTHING_TO_DO,
        output=job.output,
        committed=job.committed,
        failed=job.failed,
        skipped=job.skipped,
        reason=reason,
    )
