"""What it catches: an output place where this user cannot write: a read-only file system, a file where the folder
should be, missing rights, or a link that leads out of the manifest's folder tree. And one that lies in the state
directory, or holds it.

Why: the job would fail at its first part, after the work was done. An output that is put aside for a new run would
take the ledger with it.

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
