"""The graph of op steps in a line, as data of the plan."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ortdeploy.plan.pipeline import PlannedValue


class OpNode(Struct, frozen=True, kw_only=True):
    """One operator: `inputs` and `outputs` are names by position, "" for what is left out.

    `made` are the element types of its outputs where onnx does not know the operator.
    """

    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    made: tuple[str | None, ...] = ()


class OpConstant(Struct, frozen=True, kw_only=True):
    """A value that the manifest writes in place of an input."""

    name: str
    dtype: str
    content: Any


class OpGraph(Struct, frozen=True, kw_only=True):
    """Operators in order, their constants, what they are fed and what they give; `opsets` are by domain.

    `by_row`: it is run for one row at a time, and its tensors are without the rows' axis.
    """

    nodes: tuple[OpNode, ...]
    constants: tuple[OpConstant, ...]
    inputs: tuple[PlannedValue, ...]
    outputs: tuple[PlannedValue, ...]
    opsets: Mapping[str, int]
    by_row: bool = False

    @property
    def operators(self) -> str:
        """Its operators in order, in words."""
        return ", ".join(node.operator for node in self.nodes)


class Fusion(Struct, frozen=True, kw_only=True):
    """Op steps that are put into a model's own graph: those before it and those behind it.

    `takes` are pairs of the model's input and the value that feeds it, `gives` of the model's output and its name.
    What the fused graph takes and gives is called like the values; `inputs` and `outputs` are their names.
    """

    before: OpGraph | None
    after: OpGraph | None
    takes: tuple[tuple[str, str], ...]
    gives: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
