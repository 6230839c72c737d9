"""Decides which op steps go into the session of a model with `fuse: true`, and why some cannot."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ortdeploy.deployment.constant_inputs import FedValue
from ortdeploy.deployment.op_names import KnownOperators
from ortdeploy.deployment.op_steps import OpStep
from ortdeploy.facts.models import ModelFacts
from ortdeploy.manifest.op_steps import ONNX
from ortdeploy.manifest.pipelines import StepOfPipeline
from ortdeploy.plan.op_graph import OpGraph
from ortdeploy.tensors.row_axes import RowAxes


class StepWithOp(Protocol):
    """What is looked at of a typed step."""

    @property
    def spec(self) -> StepOfPipeline:
        """The step as written."""

    @property
    def op(self) -> OpStep | None:
        """Its operator, joined."""

    @property
    def constants(self) -> Sequence[FedValue]:
        """What the manifest feeds its model."""

    @property
    def axes(self) -> RowAxes:
        """Where its model has the rows."""


def neighbours(steps: Sequence[StepWithOp], index: int) -> tuple[int | None, int | None]:
    """Return the places of the op steps that end the lines before and behind a step; None if they cannot be fused.

    A line between two steps that fuse goes to the first of them.
    """
    return _before(steps, index), _behind(steps, index)


def _before(steps: Sequence[StepWithOp], index: int) -> int | None:
    if index == 0 or not _is_row_wise(steps[index - 1]):
        return None
    first = index - 1
    while first > 0 and _goes_on(steps[first - 1], steps[first]):
        first -= 1
    return None if first > 0 and steps[first - 1].spec.fuse else index - 1


def _behind(steps: Sequence[StepWithOp], index: int) -> int | None:
    last = index + 1
    if last >= len(steps) or not _is_row_wise(steps[last]):
        return None
    while last + 1 < len(steps) and _goes_on(steps[last], steps[last + 1]):
        last += 1
    return last


def _is_row_wise(step: StepWithOp) -> bool:
    return step.op is not None and not step.op.graph.by_row


def _goes_on(one: StepWithOp, other: StepWithOp) -> bool:
    return other.op is not None and other.op.goes_on_from(one.op)


def why_not_fused(
    steps: Sequence[StepWithOp], index: int, model: ModelFacts, state: Mapping[str, str], operators: KnownOperators
) -> str | None:
    """Say, in full sentences, why the op steps around a step cannot go into its model; None if they can."""
    step = steps[index]
    places = [place for place in neighbours(steps, index) if place is not None]
    graphs = [op.graph for place in places if (op := steps[place].op) is not None]
    if not graphs:
        return "No op steps stand right before or behind it that run for all rows: there is nothing to fuse."
    return next(_reasons(step, graphs, model, state, operators), None)


def _reasons(
    step: StepWithOp,
    graphs: Sequence[OpGraph],
    model: ModelFacts,
    state: Mapping[str, str],
    operators: KnownOperators,
) -> Iterator[str]:
    spec = step.spec
    if spec.by_row:
        yield "It runs row by row, and the op steps around it run for all rows. Leave out by_row or fuse."
    if spec.adapters:
        yield "An adapter belongs to the model as its file has it. Leave out adapter or fuse."
    if step.constants:
        yield f'Its input "{step.constants[0].value.name}" is fed a constant. Leave out fuse.'
    if model.path.lower().endswith(".ort"):
        yield "Its model is in ORT format, whose graph is finished. Name the .onnx file, or leave out fuse."
    if model.compiled_by:
        compilers = " and ".join(model.compiled_by)
        yield f"Its model was compiled by {compilers}, and takes no other nodes. Leave out fuse."
    if any((*step.axes.inputs.values(), *step.axes.outputs.values())):
        yield "Its model has the rows at another axis than the first. Leave out fuse."
    if not {*state, *state.values()}.isdisjoint({*spec.wires.values(), *(name for _, name in spec.outputs)}):
        yield "Its model takes or gives state, which is fed whole. Leave out fuse."
    optional = [value.name for value in model.inputs if value.optional and value.name in spec.wires]
    if optional:
        yield f'Its input "{optional[0]}" has a default in the graph. Leave out fuse.'
    for graph in graphs:
        yield from _other_sets(graph, model, operators)


def _other_sets(graph: OpGraph, model: ModelFacts, operators: KnownOperators) -> Iterator[str]:
    """Yield the operators that mean something else in the model's operator set: a graph has one of each domain."""
    for node in graph.nodes:
        version, own = graph.opsets[node.domain], model.opsets.get(node.domain)
        if own is None or own == version:
            continue
        meant = operators.find(node.operator, node.domain, version)
        there = operators.find(node.operator, node.domain, own)
        if meant is None or there is None or meant.since != there.since:
            advice = f"Export it with operator set {version}" if node.domain == ONNX else "Convert it"
            yield (
                f"Its model has operator set {own} of {node.domain}, in which {node.operator} is not that of set "
                f"{version}. {advice}, or leave out fuse."
            )
