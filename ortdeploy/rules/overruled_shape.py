"""What it catches: an input or output whose declared shape contradicts the graph, where the nodes do not confirm it.

Why: exporters write shapes into a graph, and they can be wrong, or narrower than its nodes need. ONNX Runtime warns of
an output's and runs such a model, and refuses tensors that differ from an input's. So the plan takes the manifest's
word: axes, steps and columns follow from the declared shape of an output, and the session is opened with the declared
shape of an input. If the nodes confirm the graph, shape-mismatch refuses the declaration of another size.

Example:

    inputs: {x: {shape: [n, 3, h, w]}}             # the graph says [1, 3, 224, 224], and convolves
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
        for declared in (*model.spec.inputs, *model.spec.outputs):
            if declared.name not in model.overruled:
                continue
            written, shape = format_shape(model.overruled[declared.name]), format_shape(declared.tensor.shape)
            of_input = declared.name in model.facts.overruled
            does = f"The session is opened with {shape}" if of_input else f"The plan goes by the declared {shape}"
            detail = (
                f'Model "{model.spec.name}" says of "{declared.name}" that it is {written}, which its nodes do not '
                f"{'need' if of_input else 'confirm'}. {does}. Compare it with the results of ortdeploy try."
            )
            yield Finding(at=(*declared.at, "shape"), detail=detail, model=model.spec.name)
