"""What it catches: first pictures that are transparent in places, in a job that does not say what lies behind them.

Why: a model takes red, green and blue. Without more, transparency is dropped, and the colours show that are stored
where nobody sees them: most often black. Black letters on a transparent ground are then black on black.

Example: PNG files of scanned signatures, input: {path: signatures/*.png}.

How to fix: say what they are to lie on: input: {background: white} or black. With background: none, transparency is
dropped as before, without this warning.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="dropped-transparency", summary="Transparency of pictures is dropped", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.preflight.first_rows.get(job.spec.name)
        if found is not None and found.transparent:
            rows = found.some(found.transparent, "is transparent in places", "are transparent in places")
            detail = (
                f"{rows}, and the colours that are stored there are fed. Say what lies behind: background: white or "
                "black, or none, to feed these colours."
            )
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name, model=job.spec.model)
