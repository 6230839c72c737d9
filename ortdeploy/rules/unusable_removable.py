"""What it catches: an output whose parts may be carried away, and whose rows cannot be told apart by a column `row`, or
that lies on an object store.

Why: a row that is written again, in `part-N.r1`, replaces the one of equal `row`, wherever the part may be by then. Of
what lies on a store, ortdeploy looks at its own copy beside the manifest, and removes parts there that the copy lacks.

Example: `output: {path: out, removable: true}` of a CSV that has a column `row` of its own.

How to fix: give the column another name, or leave `removable` out.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.spec import ROW
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="unusable-removable", summary="Parts cannot be carried away")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        why = _why(job) if job.spec.output.removable else None
        if why is not None:
            detail = f'Parts of job "{job.spec.name}" cannot be carried away: {why}, or remove removable.'
            yield Finding(at=(*job.spec.output.at, "removable"), detail=detail, job=job.spec.name)


def _why(job: "ResolvedJob") -> str | None:
    if job.spec.output.url is not None:
        return "its output lies on an object store. Write to a folder"
    if ROW in job.columns:
        return f'they need a column "{ROW}" with the number of each row, and a result has that name. Rename the result'
    if ROW in job.input.columns:
        return f'they need a column "{ROW}" with the number of each row, and the input has one of its own. Rename that'
    return None
