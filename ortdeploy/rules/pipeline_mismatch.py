"""What it catches: a wire of a pipeline that does not fit: an input or output that a model does not have, an input that
nothing feeds, types, ranks or sizes that differ, or an operation that cannot take what reaches it.

Why: every wire is checked against the graphs before a session exists, like the inputs of a single model. ONNX Runtime
would refuse such a tensor at the first row, or compute something wrong from it.

Example:

    - {run: reader, in: {image: $crop}, out: {scores: scores}} # uint8 [rows, 9, 8, 1] for float32 [rows, 1, 8, 8]

How to fix: the message says what reaches the input and what it takes. Steps such as cast, resize, scale and layout
convert one into the other.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="pipeline-mismatch", summary="A wire of a pipeline does not fit")


def check(deployment: "Deployment") -> Iterator[Finding]:
    seen = set()
    for job in deployment.jobs:
        types = job.pipeline.types if job.pipeline else None
        if types is None or job.model.facts.problem is not None:
            continue
        for problem in types.problems:
            if problem not in seen and not problem.of_operator:
                seen.add(problem)
                yield Finding(at=problem.at, detail=problem.detail, job=job.spec.name)
