"""Values that the manifest feeds to inputs of models: under `values` of a job, or in their place in a `run` step."""

from typing import Any

from msgspec import Struct

from ortdeploy.diagnostics import as_key
from ortdeploy.facts.models import ValueFacts
from ortdeploy.plan.constants import PlannedConstant
from ortdeploy.tensors.fed_values import as_array
from ortdeploy.tensors.types import TensorType


class FedValue(Struct, frozen=True, kw_only=True):
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
    def planned(self) -> PlannedConstant:
        """The value as the plan has it, if no rule objects to it."""
        dtype = self.target.dtype or ""
        return PlannedConstant(
            name=self.value.name, content=self.content, dtype=dtype, shape=self.shape, row_axis=self.axis
        )

    @property
    def misfit(self) -> str | None:
        """Why the input cannot take the value, in words; None if it can."""
        if self.value.kind != "tensor" or not self.target.dtype:
            return "only tensors are fed"
        try:
            as_array(self.content, self.target.dtype, self.shape)
        except ValueError as error:
            return f"{error}{self._unless_whole}"
        return None

    @property
    def _unless_whole(self) -> str:
        """What to write if the value fits the input as a whole; empty if it does not."""
        try:
            as_array(self.content, self.target.dtype or "", None if self.axis is None else self.target.shape)
        except ValueError:
            return ""
        if self.axis is None:
            return ""
        return (
            f": its axis {self.axis} is taken for the rows, each of which would get this value. If the value is the "
            "whole input, the same for all rows, write inputs: "
            f"{{{as_key(self.value.name)}: {{row_axis: none}}}} of the model"
        )
