"""What it catches: a row_axis that the input or output does not have.

Why: rows cannot be counted on an axis that is not there.

Example:

    outputs: {y: {row_axis: 3}}     # the graph's y is [time, batch, 3]

How to fix: count axes from 0, in the order of the graph. For a tensor that is not by row, write row_axis: none.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-row-axis", summary="No such axis")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        values = {value.name: value for value in (*model.facts.inputs, *model.facts.outputs)}
        for declared in (*model.spec.inputs, *model.spec.outputs):
            value, axis = values.get(declared.name), declared.row_axis
            if value is None or not isinstance(axis, int):
                continue
            rank = 1 if value.kind != "tensor" else None if value.tensor.shape is None else len(value.tensor.shape)
            if rank is not None and axis >= rank:
                shown = value.tensor if value.kind == "tensor" else f"a {value.kind}"
                last = f"Its last one is {rank - 1}." if rank else "It has none: write row_axis: none."
                detail = f'"{declared.name}" of model "{model.spec.name}" is {shown} and has no axis {axis}. {last}'
                yield Finding(at=(*declared.at, "row_axis"), detail=detail, model=model.spec.name)
