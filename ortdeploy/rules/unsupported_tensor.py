"""What it catches: a fed input or written output that is not a tensor (a sequence, a map, an optional), has an element
type that rows cannot have here, or has no dimension for rows although the job runs in batches.

Why: classifiers exported from scikit-learn give sequences of maps unless told otherwise, and a scalar input belongs
to a run, not to a row.

Example: an output of type seq(map(int64, tensor(float))).

How to fix: export with zipmap off, leave the output out with columns:, or use batch: {size: none}.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment import Deployment
    from ortdeploy.facts import ValueFacts

RULE = Rule(id="unsupported-tensor", summary="Input or output that rows cannot carry")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for binding in job.bindings:
            reason = _reason(binding.value)
            if reason is None and job.batch_size and binding.target.shape == ():
                reason = "is a scalar, which has no dimension for rows; use batch: {size: none}"
            if reason:
                detail = f'Input "{binding.value.name}" of model "{job.spec.model}" {reason}.'
                yield Finding(at=job.spec.input.at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)
        for value in job.model.facts.outputs:
            reason = _reason(value) if value.name in job.needed else None
            if reason:
                detail = f'Output "{value.name}" of model "{job.spec.model}" {reason}. Leave it out with columns:.'
                yield Finding(at=job.spec.output.at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)


def _reason(value: "ValueFacts") -> str | None:
    if value.kind != "tensor":
        return f"is a {value.kind}, not a tensor"
    return None if value.tensor.dtype else "has an element type that rows cannot have here"
