"""The steps of a pipeline with the types of their values, and what is wrong with its wires."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from ortdeploy.deployment.constant_inputs import FedValue
from ortdeploy.deployment.op_steps import OpStep
from ortdeploy.facts.models import ValueFacts
from ortdeploy.manifest.document import Path
from ortdeploy.manifest.pipelines import StepOfPipeline
from ortdeploy.tensors.row_axes import RowAxes
from ortdeploy.tensors.types import TensorType

Arrives = Callable[[str, str | None], TensorType | None]
"""Tells in which type a column comes, by its name and the element type that is wanted; None: no such column."""


class WireProblem(Struct, frozen=True, kw_only=True):
    """A wire that does not fit: where, and why, in full sentences; `of_operator`: an op step cannot be done."""

    at: Path
    detail: str
    of_operator: bool = False


class TypedStep(Struct, frozen=True, kw_only=True):
    """A step with the types that reach it; `ports` are the inputs of its model, `inner` the steps of an `each`.

    `made` are the types of its results by their names. All have their rows first; `axes` say where the model has them.
    `constants` are what the manifest feeds its model. `state` are the values that an item takes from the one before,
    rows first or, unless `state_by_row`, whole.
    `op` is an op step's graph, of all that it stands behind in a line too. `fixed_rows` is the number of rows that a
    model's graph takes, if it takes only one.
    """

    spec: StepOfPipeline
    types: Mapping[str, TensorType]
    made: Mapping[str, TensorType]
    options: Mapping[str, Any]
    ports: tuple[ValueFacts, ...] = ()
    inner: tuple["TypedStep", ...] = ()
    axes: RowAxes = field(default_factory=RowAxes)
    constants: tuple[FedValue, ...] = ()
    state: Mapping[str, TensorType] = field(default_factory=dict)
    state_by_row: bool = False
    op: OpStep | None = None
    fixed_rows: int | None = None

    @property
    def wires(self) -> dict[str, str]:
        """Its arguments that are values of rows, with their names."""
        whole = {one.value.name for one in self.constants}
        return {argument: name for argument, name in self.spec.wires.items() if argument not in whole}


class PipelineTypes(Struct, frozen=True, kw_only=True):
    """A pipeline's inputs, which a job's columns feed, its outputs, its steps, and what is wrong with its wires.

    `state` are the values that a row takes from the one before, as the models take them: whole, without rows. `whole`
    are the inputs that models take as they are, for a whole run. `wanted` are the element types in which steps want
    values.
    """

    inputs: Mapping[str, ValueFacts]
    outputs: Mapping[str, TensorType]
    steps: tuple[TypedStep, ...]
    problems: tuple[WireProblem, ...]
    state: Mapping[str, TensorType] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    wanted: Mapping[str, str] = field(default_factory=dict)
