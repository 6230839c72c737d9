"""What it catches: an output place where this user cannot write: a read-only file system, a file in the place of the
folder, missing rights, or a link that leads out of the manifest's folder tree. Also an output that lies in the state
directory, or contains it; and one that a link leads to the output of another job.

Why: the job would fail at its first part, after the work was done. And if --new-run renames an output, the ledger must
not be inside it. Two jobs in one folder would overwrite each other's parts.

Example: output: {path: /mnt/readonly/out}

How to fix: choose another place, or change its rights.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unwritable-output", summary="Output place cannot be written", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        done = job.is_finished and job.is_current
        problem = job.output.problem or (None if done else job.output.read_only)
        if problem is not None:
            yield Finding(at=(*job.spec.output.at, "path"), detail=problem.detail, job=job.spec.name)
