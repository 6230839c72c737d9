"""What it catches: a step that is an operator of ONNX and cannot be done: names that the operator does not have, inputs
that nothing feeds, types and shapes that do not go together, attributes of another type, rows that it would mix.

Why: ONNX has no implicit casts, and a graph that cannot be made would be refused when the job begins. Axis 0 of every
value counts rows: a row's result must not depend on the rows beside it. Names and types are those of ONNX's own
operator schemas, shapes those of onnx's own inference; of operators of other domains, ONNX Runtime's schemas tell the
names and element types, and shapes are not checked before the run.

Example:

    - {op: Mul, in: {A: $picture, B: 0.5}, out: half}          # uint8 times a fraction

How to fix: the message has the nearest name, or the step to add: {op: Cast, in: {input: $picture}, attributes: {to:
float32}, out: picture_float32}. An operator that works over all of its input takes one row at a time with by_row: true.
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
