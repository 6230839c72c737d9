"""Values that the manifest feeds to inputs of models: under `values` of a job, or in their place in a `run` step."""

from typing import Any

from ortdeploy.facts.models import ValueFacts
from ortdeploy.records import record
from ortdeploy.tensors.fed_values import as_array
from ortdeploy.tensors.types import TensorType


@record
class FedValue:
    """A model input that the manifest feeds a value that no row carries; `axis` and `target` as of a binding."""

    value: ValueFacts
    axis: int | None
    target: TensorType
    content: Any

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """The shape that one row's value has, or the whole where the input is not by row."""
        shape = self.target.shape
        return shape if self.axis is None or shape is None else shape[1:]

    @property
    def misfit(self) -> str | None:
        """Why the input cannot take the value, in words; None if it can."""
        if self.value.kind != "tensor" or not self.target.dtype:
            return "only tensors are fed"
        try:
            as_array(self.content, self.target.dtype, self.shape)
        except ValueError as error:
            return str(error)
        return None
