"""What it catches: a prepare or postprocess step that cannot take what reaches it.

Why: it would fail on every row, after the session was opened.

Example:

    prepare: {image: [{layout: NCHW}, {resize: [8, 8]}]}     # resize works before the transposition

How to fix: the message says what the step needs. Change the order, or the step before it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="inapplicable-step", summary="Step cannot take what reaches it")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        problems = [binding.problem for binding in job.bindings if job.readable and not binding.unknown]
        for problem in (*problems, *job.postprocess_problems):
            if problem is not None and problem.at is None:
                detail = f"{problem.step.name}: {problem.reason}."
                yield Finding(at=problem.step.at, detail=detail, job=job.spec.name)
