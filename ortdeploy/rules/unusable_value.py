"""What it catches: a value under values: that its model input cannot take, an input that a column feeds too, and a job
whose model is fed nothing by row.

Why: the value would be refused at the first run. Where columns feed an input as well, one of the two would be lost.

Example:

    input: {values: {sr: 16 kHz}}     # the graph's sr is int64 []

How to fix: write a value of the input's type and shape. One number fills a shape whose sizes are all known.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.fed_values import as_array

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, FedValue, ResolvedJob

RULE = Rule(id="unusable-value", summary="Input cannot take its value")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for one in job.values:
            reason = _reason(one, job)
            if reason is not None:
                at = (*job.spec.input.at, "values", one.value.name)
                detail = f'Input "{one.value.name}" ({one.target}) of model "{job.spec.model}": {reason}.'
                yield Finding(at=at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)
        if job.values and not job.bindings:
            detail = f'No column of the data feeds model "{job.spec.model}": there would be nothing to run row by row.'
            at = (*job.spec.input.at, "values")
            yield Finding(at=at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)


def _reason(one: "FedValue", job: "ResolvedJob") -> str | None:
    if one.value.kind != "tensor" or not one.target.dtype:
        return "only tensors are fed"
    if one.value.name in job.spec.input.columns:
        return "a column feeds it too; name one of the two"
    if one.value.name in job.spec.prepare:
        return "prepare steps are for columns, and this one is fed a value"
    shape = one.target.shape
    try:
        as_array(one.content, one.target.dtype, shape if one.axis is None or shape is None else shape[1:])
    except ValueError as error:
        return str(error)
    return None
