"""What it catches: an input declared as NHWC that the graph's convolutions read as NCHW, or the other way round.

Why: if the sizes happen to fit, the results of the model are silently wrong. By their definition, convolutions and
pools of ONNX work on NCHW. A graph takes NHWC only if it moves the channels itself.

Example:

    inputs: {image: {layout: NHWC}}     # the first node of the graph is a Conv

How to fix: declare the graph's layout, and add a step that brings rows into it: prepare: {image: [{layout: NCHW}]}.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="layout-mismatch", summary="Declared layout is not the graph's")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        layouts = {value.name: value.tensor.layout for value in model.facts.inputs}
        for declared in model.spec.inputs:
            have, want = declared.tensor.layout, layouts.get(declared.name)
            if have and want and have != want:
                detail = (
                    f'"{declared.name}" is declared as {have}, and the graph of model "{model.spec.name}" takes it as '
                    f"{want}. Declare {want}, and transpose rows in a step: prepare: {{{declared.name}: "
                    f"[{{layout: {want}}}]}}."
                )
                yield Finding(at=(*declared.at, "layout"), detail=detail, model=model.spec.name)
