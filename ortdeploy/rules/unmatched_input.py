"""What it catches: an input path or glob that no file matches.

Why: a job without files would succeed and write nothing, and nobody would notice the wrong path.

Example: input: {path: inbox/*.pgn}

How to fix: correct the path; it is relative to the manifest. If a timer starts the job, and there may be no files,
write on_empty: done.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unmatched-input", summary="No input file matches")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        problem = job.input.problem
        if problem is not None and problem.kind == "unmatched":
            detail = f"{problem.detail} If there may be no files yet, write on_empty: done under input:."
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name)
