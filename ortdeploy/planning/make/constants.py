"""Writes down a value that the manifest feeds to an input of a model."""

from ortdeploy.deployment.constant_inputs import FedValue
from ortdeploy.plan.constants import PlannedConstant


def planned_constant(fed: FedValue) -> PlannedConstant:
    """Write down a value to which no rule objects."""
    return PlannedConstant(
        name=fed.value.name, content=fed.content, dtype=fed.target.dtype or "", shape=fed.shape, row_axis=fed.axis
    )
