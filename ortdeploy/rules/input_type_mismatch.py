"""What it catches: prepared rows whose element type is not that of the model input.

Why: ONNX Runtime accepts no other type than the graph's: "Unexpected input data type. Actual: (tensor(double)),
expected: (tensor(float))".

Example: a float64 .npy for a float32 input.

How to fix: add a cast step: prepare: {x: [{cast: float32}]}. Text can be
cast only if it spells numbers; words need {do: tokenize}, or a model that takes text.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import as_key
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="input-type-mismatch", summary="Rows do not have the input's element type")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for binding in job.bindings if job.comparable else ():
            have, want = binding.final.dtype, binding.target.dtype
            if have and want and have != want:
                name = binding.value.name
                step = f"prepare: {{{as_key(name)}: [{{cast: {want}}}]}}"
                advice = (
                    f"If each text is a number, add a step: {step}." if have == "string" else f"Add a step: {step}."
                )
                detail = f'Input "{name}" takes {want} and gets {have}. {advice}'
                at = (*job.spec.at, "prepare", name) if binding.steps else (*job.spec.input.at, "columns", name)
                yield Finding(at=at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)
