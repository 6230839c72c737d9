"""What it catches: two adapters of one job that bring the same parameter.

Why: ONNX Runtime takes the one that was added first, for each parameter by itself, and says nothing: the result is a
mix that nobody trained.

Example: adapter: [french, legal], both of which have q.lora_A.

How to fix: name one of them, or merge them into one adapter.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment import Deployment

RULE = Rule(id="overlapping-adapters", summary="Adapters bring the same parameter")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        names = [name for name in job.spec.adapters.always if name in job.adapter_facts]
        for one, other in combinations(names, 2):
            parameters = {parameter.name for parameter in job.adapter_facts[one].parameters}
            shared = sorted(parameters & {parameter.name for parameter in job.adapter_facts[other].parameters})
            if shared:
                detail = (
                    f'Adapters "{one}" and "{other}" both bring {", ".join(shared[:3])}: the one that is named first '
                    "would win, for each by itself. Name one of them, or merge them into one adapter."
                )
                yield Finding(at=(*job.spec.at, "adapter"), detail=detail, job=job.spec.name, model=job.spec.model)
