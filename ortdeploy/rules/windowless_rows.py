"""What it catches: first rows that are shorter than a window, in a pipeline that leaves out what fills no whole window.

Why: such a row gives no window, so its model never runs for it. With explode: it has no line in the output, without it
an empty list. The job ends well, and nobody is told.

Example: recordings of 2 seconds at 16,000 Hz, and {do: windows, in: {x: $samples, size: 144000, last: drop}, …}.

How to fix: write last: pad, which fills up the last window with zeros, if the model may see them. last: short makes the
last window shorter, for a model that takes any length. Or take the size for which the model was made.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="windowless-rows", summary="First rows give no window", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.preflight.first_rows.get(job.spec.name)
        if found is not None and found.windowless:
            rows = found.some(found.windowless, "is shorter than a window", "are shorter than a window")
            detail = (
                f"{rows}: nothing is computed for such a row, as the step windows has last: drop. Write last: "
                "pad to fill windows up."
            )
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name, model=job.spec.model)
