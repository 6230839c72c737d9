"""What it catches: op steps that ONNX Runtime does not open: element types for which the CPU provider has no kernel, or
unknown values of attributes.

Why: the operator's schema allows more than ONNX Runtime computes. While the plan is made, ONNX Runtime opens the graph
of the steps, in a process of its own, and the finding says what apply would say.

Example:

    - {op: Cast, in: {input: $x}, attributes: {to: uint16}, out: words}
    - {op: Relu, in: {X: $words}, out: positive}            # no kernel for uint16

How to fix: the message quotes ONNX Runtime. Cast to an element type that it computes in, such as float32.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="refused-operator", summary="ONNX Runtime refuses op steps", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job, refused in deployment.preflight.refused_operators.items():
        for one in refused:
            detail = f"ONNX Runtime does not open {one.operators}: {one.refusal}."
            yield Finding(at=one.at, detail=detail, job=job)
