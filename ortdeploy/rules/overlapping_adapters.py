"""What it catches: two adapters of one job that have the same parameter, or a column or a value that feeds a parameter
of one.

Why: for each parameter, ONNX Runtime silently takes the adapter that was added first, and never what is fed. The result
is a mix that nobody trained.

Example: adapter: [french, legal], both of which have q.lora_A.

How to fix: name one of them, or merge them into one adapter.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="overlapping-adapters", summary="Adapters have the same parameter")


def check(deployment: "Deployment") -> Iterator[Finding]:
    facts = deployment.facts.adapters
    for use in deployment.spec.adapter_uses():
        names = [name for name in use.names if use.together and name in facts]
        for one, other in combinations(names, 2):
            parameters = {parameter.name for parameter in facts[one].parameters}
            shared = sorted(parameters & {parameter.name for parameter in facts[other].parameters})
            if shared:
                detail = (
                    f'Adapters "{one}" and "{other}" both have {", ".join(shared[:3])}, and ONNX Runtime would use '
                    f'those of "{one}" alone. Name one of them, or merge them into one adapter.'
                )
                yield Finding(at=use.at, detail=detail, job=use.job, model=use.model)
    for job in (job for job in deployment.jobs if job.pipeline is None):
        source = job.spec.input
        for key, fed in (("columns", source.columns), ("values", source.values)):
            for name in (name for name in fed if name in job.adapter_shapes):
                detail = (
                    f'An adapter of job "{job.spec.name}" has {name}, and ONNX Runtime would use that. Remove it here.'
                )
                at = (*source.at, key, name)
                yield Finding(at=at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)
