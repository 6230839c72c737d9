"""What it catches: an output whose declared shape contradicts the graph, where the nodes do not confirm it.

Why: exporters write shapes of outputs into a graph, and they can be wrong. ONNX Runtime warns and runs such a model. So
the plan takes the manifest's word: axes, steps and columns follow from the declared shape. If the nodes confirm the
graph, shape-mismatch refuses the declaration.

Example:

    outputs: {y: {shape: [null, 1, 4]}}            # the graph says [1, s], and transposes [1, w, 4]

How to fix: nothing, if the declared shape is that of the results: ortdeploy try shows them. Otherwise correct it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.types import format_shape

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="overruled-shape", summary="Declared shape stands for the model's", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for declared in model.spec.outputs:
            if declared.name not in model.overruled:
                continue
            detail = (
                f'Model "{model.spec.name}" says of "{declared.name}" that it is '
                f"{format_shape(model.overruled[declared.name])}, which its nodes do not confirm. The plan goes by the "
                f"declared {format_shape(declared.tensor.shape)}. Compare it with the results of ortdeploy try."
            )
            yield Finding(at=(*declared.at, "shape"), detail=detail, model=model.spec.name)
