"""The axis of a tensor that counts rows, and tensors with that axis first."""

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct, field

from ortdeploy.tensors.types import Shape, TensorType

_Size = TypeVar("_Size", bound=int | None)

HOW_TO_DECLARE = "If one of its axes counts rows, say which: outputs: {NAME: {row_axis: AXIS}} of the model."
"""What a message says of an output of which no axis was found to count rows."""


class RowAxes(Struct, frozen=True, kw_only=True):
    """The axis that counts rows, by input and by output; None: not by row. Axis 0 for those that are not named.

    `declared` are the outputs whose axis the manifest declares.
    """

    inputs: Mapping[str, int | None] = field(default_factory=dict)
    outputs: Mapping[str, int | None] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()

    def of_input(self, name: str) -> int | None:
        """Return the axis of an input that counts rows; None if none does."""
        return self.inputs.get(name, 0)

    def of_output(self, name: str) -> int | None:
        """Return the axis of an output that counts rows; None if none does."""
        return self.outputs.get(name, 0)

    @property
    def of_one_row_runs(self) -> "RowAxes":
        """The axes where each row is one run: no axis counts rows, and what is declared as not by row stays so."""
        outputs = {name: None for name in self.declared if self.outputs[name] is None}
        return RowAxes(outputs=outputs, declared=frozenset(outputs))

    @property
    def of_runs_of_one(self) -> "RowAxes":
        """The axes where a run gets one row: what it gives belongs to that row, unless it is declared as not by row."""
        outputs = {name: axis if name in self.declared else axis or 0 for name, axis in self.outputs.items()}
        return RowAxes(inputs=self.inputs, outputs=outputs, declared=self.declared)


def to_front(shape: Shape | None, axis: int | None) -> Shape | None:
    """Return a shape of the graph with its row axis first."""
    if shape is None or not axis or axis >= len(shape):
        return shape
    return (shape[axis], *shape[:axis], *shape[axis + 1 :])


def rows_first(tensor: TensorType, axis: int | None) -> TensorType:
    """Return a type of the graph with its row axis first."""
    return tensor.with_shape(to_front(tensor.shape, axis)) if axis else tensor


def to_place(shape: tuple[_Size, ...], axis: int | None) -> tuple[_Size, ...]:
    """Return a shape whose rows are first as the graph has it."""
    return (*shape[1 : axis + 1], shape[0], *shape[axis + 1 :]) if axis else shape
