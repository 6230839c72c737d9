"""What it catches: a declared shape whose rank or sizes the model's graph contradicts. A scalar [] is rank 0, not an
unknown shape.

Why: the declaration says what this deployment was built for. A model with another shape is another model.

Example:

    inputs: {image: {shape: [batch, 3, 8, 8]}}     # the graph says [batch, 1, 8, 8]

How to fix: correct the declaration, or use the model that it describes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.types import format_shape, shapes_agree

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="shape-mismatch", summary="Declared shape is not the model's")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        values = {value.name: value for value in (*model.facts.inputs, *model.facts.outputs)}
        for declared in (*model.spec.inputs, *model.spec.outputs):
            value = values.get(declared.name)
            if value is None or shapes_agree(declared.tensor.shape, value.tensor.shape):
                continue
            detail = (
                f'"{declared.name}" is declared as {format_shape(declared.tensor.shape)}, and model '
                f'"{model.spec.name}" has {format_shape(value.tensor.shape)}. Correct the declaration, or use the '
                "model that it describes."
            )
            yield Finding(at=(*declared.at, "shape"), detail=detail, model=model.spec.name)
