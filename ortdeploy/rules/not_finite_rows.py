"""What it catches: first rows with NaN or an infinity, in a job that does not say what happens to them.

Why: ONNX Runtime accepts them silently. The index of a maximum over NaN is 0, a cast makes NaN the smallest integer,
and a graph that mixes rows spreads it over the batch. Tree ensembles read NaN as a missing value, so this is a warning
and no error.

Example: a .npy with gaps, and errors: without on_nan.

How to fix: say what happens to such rows: errors: {on_nan: fail}, skip or keep. Or declare the input's range:, which
excludes NaN.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="not-finite-rows", summary="First rows hold NaN or infinities", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.preflight.first_rows.get(job.spec.name)
        if found is not None and found.not_finite and job.spec.on_nan is None:
            rows = found.some(found.not_finite, "holds NaN or an infinity", "hold NaN or an infinity")
            detail = (
                f"{rows}. Say what happens to rows whose outputs hold them too: errors: {{on_nan: fail}}, skip or keep."
            )
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name, model=job.spec.model)
