"""What it catches: a job whose input files exist but hold no row.

Why: the job would succeed and write nothing. After a step that found nothing, that may be right. After an export that
went wrong, nobody would notice.

Example: a CSV with a header line alone.

How to fix: nothing, if no rows are expected. Otherwise look at what writes the input.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="empty-input", summary="Input holds no row", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.preflight.first_rows.get(job.spec.name)
        if found is not None and found.rows == 0:
            detail = (
                f'The input of job "{job.spec.name}" holds no row: the job would end well and write nothing. If rows '
                "are expected, look at what writes the input."
            )
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name, model=job.spec.model)
