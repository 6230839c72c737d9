"""What it catches: a step with an operator of ONNX that cannot be done: names that the operator does not have, inputs
that nothing feeds, types and shapes that do not match, attributes of another type, rows that it would mix.

Why: ONNX has no implicit casts, and a wrong graph would be refused when the job begins. Axis 0 of every value counts
rows, and a row's result must not depend on the rows beside it. Names and types come from ONNX's own operator schemas,
shapes from onnx's own inference. For operators of other domains, names and element types come from ONNX Runtime's
schemas, and shapes are not checked before the run.

Example:

    - {op: Mul, in: {A: $picture, B: 0.5}, out: half}          # uint8 times a fraction

How to fix: the message has the nearest name, or the missing step: {op: Cast, in: {input: $picture}, attributes: {to:
float32}, out: picture_float32}. If an operator works over all of its input, by_row: true gives it one row at a time.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-operator", summary="Operator cannot be a step as it is written")


def check(deployment: "Deployment") -> Iterator[Finding]:
    seen = set()
    for job in deployment.jobs:
        for one in job.op_problems:
            yield Finding(at=one.at or one.step.at, detail=one.reason, job=job.spec.name)
        types = job.pipeline.types if job.pipeline else None
        if types is None or job.model.facts.problem is not None:
            continue
        for problem in types.problems:
            if problem.of_operator and problem not in seen:
                seen.add(problem)
                yield Finding(at=problem.at, detail=problem.detail, job=job.spec.name)
