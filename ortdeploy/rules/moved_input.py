"""What it catches: new input files that are what others were, which are gone now: they were renamed or moved.

Why: ortdeploy knows a file by its path. All rows of a file that was moved run again, and stand in the output twice.

Example: whoever sorts an inbox moves inbox/a.png, whose row is committed, to inbox/done/a.png, and the job reads
inbox/**/*.png.

How to fix: move files that are done to a place that the input does not read. If these are others with the same size and
time, there is nothing to do.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.redaction import shown_path
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="moved-input", summary="Input files were moved, and run again", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if job.input.moved:
            before, now = map(shown_path, job.input.moved[0])
            many = len(job.input.moved)
            detail = (
                f"{now} has the size and time of {before}, which is gone and whose rows were run"
                f"{f'; so it is with {many} files' if many > 1 else ''}. Rows of files that were moved run again, and "
                "stand in the output twice. Move them back, or to a place that the input does not read."
            )
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name, model=job.spec.model)
