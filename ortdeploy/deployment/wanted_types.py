"""The element types that the steps of a pipeline want: text is read in them, since numbers as text have no type."""

from collections.abc import Iterator, Mapping, Sequence

from ortdeploy.deployment.op_names import KnownOperators
from ortdeploy.facts.models import ModelFacts
from ortdeploy.manifest.pipelines import StepOfPipeline
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import WIDER

USUAL = "float32"
"""What is read where no step wants anything else."""


def wanted_types(
    steps: Sequence[StepOfPipeline], models: Mapping[str, ModelFacts], operators: KnownOperators
) -> dict[str, str]:
    """Return the element type of each value that some step takes in one type only; the first step decides."""
    found: dict[str, str] = {}
    for step in steps:
        for name, dtype in _wanted(step, models, operators):
            found.setdefault(name, dtype)
    return found


def _wanted(
    step: StepOfPipeline, models: Mapping[str, ModelFacts], operators: KnownOperators
) -> Iterator[tuple[str, str]]:
    match step.kind:
        case "run":
            yield from _of_model(step, models)
        case "do":
            contract = OPERATIONS[step.name].contract
            allowed = {one.name: contract.constraint(one).types for one in contract.inputs}
            yield from ((step.wires[place], types[0]) for place, types in _taken(step, allowed) if len(types) == 1)
        case "op":
            yield from _of_operator(step, operators)
        case _:
            yield from _of_items(step, wanted_types(step.steps, models, operators))


def _taken(step: StepOfPipeline, allowed: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the places that values reach, with the types that are allowed there."""
    yield from ((place, allowed[name]) for place in step.wires if (name := place.partition(".")[0]) in allowed)


def _of_model(step: StepOfPipeline, models: Mapping[str, ModelFacts]) -> Iterator[tuple[str, str]]:
    inputs = models[step.name].inputs if step.name in models else ()
    for value in inputs:
        if value.name in step.wires and value.tensor.dtype is not None:
            yield step.wires[value.name], WIDER.get(value.tensor.dtype, value.tensor.dtype)


def _of_operator(step: StepOfPipeline, operators: KnownOperators) -> Iterator[tuple[str, str]]:
    """Yield what an operator takes that is no float32, which is what is read else."""
    facts = operators.find(step.op.operator, step.op.domain, step.op.opset) if step.op is not None else None
    allowed = {one.name: one.types for one in facts.inputs} if facts is not None else {}
    for place, types in _taken(step, allowed):
        if types and USUAL not in types:
            yield step.wires[place], "int64" if "int64" in types else types[0]


def _of_items(step: StepOfPipeline, inside: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what the steps of an each want of values outside; what they want of an item, they want of the list."""
    own = {step.item, *step.state, *(name for one in step.steps for _, name in one.outputs)}
    yield from ((name, dtype) for name, dtype in inside.items() if name not in own)
    if step.item in inside:
        yield step.name, inside[step.item]
