"""What it catches: a value under values: that its model input cannot take, an input that a column feeds too, or a job
in which nothing is fed by row.

Why: the value would be refused at the first run. If a column feeds the input as well, one of the two would be lost.

Example:

    input: {values: {sr: 16 kHz}}     # the graph's sr is int64 []

How to fix: write a value of the input's type and shape. One number fills a shape whose sizes are all known.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.constant_inputs import FedValue
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="unusable-value", summary="Input cannot take its value")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for one in job.values:
            reason = _reason(one, job)
            if reason is not None:
                at = (*job.spec.input.at, "values", one.value.name)
                detail = f'Input "{one.value.name}" ({one.target}) of {job.kind} "{job.spec.model}": {reason}.'
                yield Finding(at=at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)
        if job.values and not job.bindings:
            detail = (
                f'No column of the data feeds {job.kind} "{job.spec.model}": there would be nothing to run row by row.'
            )
            at = (*job.spec.input.at, "values")
            yield Finding(at=at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)


def _reason(one: "FedValue", job: "ResolvedJob") -> str | None:
    if one.value.name in job.spec.input.columns:
        return "a column feeds it too; name one of the two"
    if one.value.name in job.spec.prepare:
        return "prepare steps are for columns, and this one is fed a value"
    return one.misfit
