"""What it catches: an op step that does not match ONNX's definition of its operator.

- The operator does not exist, or it has no input, attribute or output of that name.
- A required input is missing, or an attribute has the wrong type.
- The operator draws random numbers, takes a graph, or gives no tensor; such operators cannot be steps.

Why: names are those of ONNX's operator set 21. ONNX itself would refuse the graph without saying where in the manifest
it was written.

Example:

    - {op: Transpose, in: {data: $raw}, attributes: {prem: [0, 2, 1]}, out: turned}

How to fix: use the nearest name, which the message suggests. The page of each operator is at onnx.ai/onnx/operators.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.facts.onnx_operators import named_operators
from ortdeploy.manifest.op_steps import ONNX, OPSET
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="misnamed-operator", summary="Step does not match its operator in ONNX")


def check(spec: "Spec") -> Iterator[Finding]:
    steps = list(spec.op_steps())
    if not steps:
        return
    from ortdeploy.deployment.op_names import OpStepError, check_names, find_operator  # noqa: PLC0415  few have op steps

    operators = named_operators(ONNX, OPSET)
    prepared = {step.at for job in spec.jobs for some in job.prepare.values() for step in some}
    for written in steps:
        step = written.renamed({}, "x") if written.at in prepared else written  # its result has no name
        if step.domain != ONNX:  # ONNX Runtime tells those, when the plan is made
            continue
        try:
            check_names(step, find_operator(step, operators))
        except OpStepError as error:
            yield Finding(at=error.at, detail=error.detail)
