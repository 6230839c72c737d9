"""What it catches: a name that neither the model nor an earlier step gives, in a postprocess step or under output:
{columns: …}.

Why: there would be nothing to write.

Example:

    postprocess: [{argmax: score, as: digit}]     # the model's output is scores

How to fix: use the name that the message offers. A step sees only what comes before it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unknown-output-column", summary="No such result")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if job.model.facts.problem is not None:
            continue
        known = [value.name for value in job.model.facts.outputs]
        for step in job.postprocess:
            for name in step.reads:
                if name not in known:
                    advice = did_you_mean(name, known)
                    detail = f'{step.name} reads "{name}", which neither the model nor an earlier step gives. {advice}'
                    yield Finding(at=(*step.at, step.name), detail=detail, job=job.spec.name)
            known += step.results
        for index, name in enumerate(job.spec.output.columns):
            if name not in known:
                detail = f'There is no result "{name}" to write. {did_you_mean(name, known)}'
                yield Finding(at=(*job.spec.output.at, "columns", index), detail=detail, job=job.spec.name)
