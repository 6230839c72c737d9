"""What it catches: an output folder that holds something else: a finished or part-finished result of the same job with
another model, input or step, or files that ortdeploy did not write.

Why: a finished output is never overwritten, and parts of two plans are never mixed.

Example: a job ran, then its model was replaced, and the job is applied again to the same folder.

How to fix: start over with `ortdeploy apply --new-run`, which keeps the old folder under another name. Or choose
another output path.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="finished-output", summary="Output folder holds another result")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        path = job.spec.output.path
        have = job.output.identity if job.readable else {}
        changed = [name for name, value in job.identity.items() if have.get(name, value) != value]
        changed += [f"input file {name}" for name in job.input.changed[:3]]
        if job.output.state == "foreign":
            detail = (
                f'"{path}" holds files that no run recorded under this state directory wrote. '
                "Bring back the ledger that knows them, choose another folder, or move them away."
            )
        elif changed:
            detail = (
                f'"{path}" holds {"the finished result" if job.output.state == "finished" else "committed parts"} of '
                f"this job, made before these changed: {', '.join(changed)}. Apply with --new-run to start over (the "
                "old folder is kept under another name), or choose another output path."
            )
        else:
            continue
        yield Finding(at=(*job.spec.output.at, "path"), detail=detail, job=job.spec.name)
