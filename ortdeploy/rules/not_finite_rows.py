"""What it catches: first rows whose numbers hold NaN or an infinity, in a job that does not say what becomes of such.

Why: ONNX Runtime takes them without a word. A maximum over NaN is index 0, a cast makes them the smallest integer, and
a graph that mixes rows spreads them over the batch. Tree ensembles read NaN as missing, which is why it is no error.

Example: a .npy with gaps, and errors: without on_nan.

How to fix: say what is meant: errors: {on_nan: fail}, skip or keep; or declare the input's range:, which NaN is not in.
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
            detail = (
                f"{len(found.not_finite)} of the first {found.rows} rows hold NaN or an infinity, row "
                f"{found.not_finite[0]} the first of them. Say what becomes of rows whose outputs do too: "
                "errors: {on_nan: fail}, skip or keep."
            )
            yield Finding(at=(*job.spec.input.at, "path"), detail=detail, job=job.spec.name, model=job.spec.model)
