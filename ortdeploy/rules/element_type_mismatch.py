"""What it catches: a declared element type that the model's graph contradicts.

Why: the declaration says what this deployment was built for. A model with another type is another model, and ONNX
Runtime would refuse the first batch with "Unexpected input data type".

Example:

    inputs: {image: {dtype: uint8}}     # the graph says float32

How to fix: correct the declaration, or use the model that it describes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="element-type-mismatch", summary="Declared element type is not the model's")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        values = {value.name: value for value in (*model.facts.inputs, *model.facts.outputs)}
        for declared in (*model.spec.inputs, *model.spec.outputs):
            value = values.get(declared.name)
            want = declared.tensor.dtype
            if value is not None and want and value.tensor.dtype and want != value.tensor.dtype:
                detail = (
                    f'"{declared.name}" is declared as {want}, and model "{model.spec.name}" has '
                    f"{value.tensor.dtype}. Correct the declaration, or use the model that it describes."
                )
                yield Finding(at=(*declared.at, "dtype"), detail=detail, model=model.spec.name)
