"""What it catches: a job whose run_timeout is not shorter than its progress_timeout.

Why: progress_timeout takes effect first: it ends the job, or the use of a session, after its time without a finished
batch. So run_timeout never ends a slow run, the batch is not split, and the slow row is not found.

Example:

    errors: {run_timeout: 10min, progress_timeout: 5min}

How to fix: make run_timeout shorter, at most half of progress_timeout, or leave one of them out.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unreached-timeout", summary="Timeout that is never reached", severity=Severity.WARNING)


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        run, progress = job.run_timeout, job.progress_timeout
        if run is not None and progress is not None and run >= progress:
            detail = (
                f"progress_timeout takes effect first, after {progress:g} s without a finished batch. "
                f"Make run_timeout shorter than {progress:g} s, or leave one of them out."
            )
            yield Finding(at=(*job.at, "errors", "run_timeout"), detail=detail, job=job.name)
