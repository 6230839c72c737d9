"""What it catches: an operator that draws numbers at random (RandomNormal, Multinomial, a Dropout that drops, …), in a
model that does not say so.

Why: the same row gives other results in every run. A job that continues, a retry or a repeated job would not give what
a single run gives, and the comparison of first rows in batches of other sizes would fail.

Example: a sampler exported with torch.randn inside, or a model exported in training mode.

How to fix: take the noise as an input, or export with model.eval(). If it is on purpose, say so:

    row_independence: false
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="random-operator", summary="Model draws numbers at random", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    run = {model.spec.name for job in deployment.jobs for model in job.models}
    for model in deployment.models:
        undeclared = model.spec.checks_rows and model.spec.row_tolerance is None
        if model.facts.draws and undeclared and model.spec.name in run:
            detail = (
                f'{" and ".join(model.facts.draws)} of model "{model.spec.name}" gives other numbers in every run. '
                "Take them as an input, or export the model for inference. If it is on purpose, write in the model: "
                "row_independence: false"
            )
            yield Finding(at=model.spec.at, detail=detail, key=True, model=model.spec.name)
