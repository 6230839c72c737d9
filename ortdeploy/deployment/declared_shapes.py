"""Takes the manifest's word for shapes: where the graph says what its nodes do not confirm, or leaves a size open.

Exporters write shapes of outputs into a graph, and ONNX Runtime runs it whether they are true or not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import as_key
from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.manifest.spec import TensorSpec
from ortdeploy.tensors.types import Shape, format_shape, shapes_agree


def with_declared_shapes(
    facts: ModelFacts, declared: Sequence[TensorSpec]
) -> tuple[ModelFacts, Mapping[str, Shape | None]]:
    """Return a model's facts with declared shapes in place of what the graph says, and what it says of these outputs.

    A shape that contradicts what the nodes give stays out: the rule shape-mismatch objects to it.
    """
    shapes = {one.name: one.tensor.shape for one in declared if one.tensor.shape is not None}
    overruled = {
        value.name: value.tensor.shape
        for value in facts.outputs
        if value.name in shapes.keys() & facts.unconfirmed.keys()
        and not shapes_agree(shapes[value.name], value.tensor.shape)
        and shapes_agree(shapes[value.name], facts.unconfirmed[value.name])
    }
    if not overruled:
        return facts, {}
    outputs = tuple(
        replace(value, tensor=value.tensor.with_shape(shapes[value.name])) if value.name in overruled else value
        for value in facts.outputs
    )
    unconfirmed = {name: shape for name, shape in facts.unconfirmed.items() if name not in overruled}
    return replace(facts, outputs=outputs, unconfirmed=unconfirmed), overruled


def with_overrides(facts: ModelFacts, session: Mapping[str, Any]) -> ModelFacts:
    """Return a model's facts as its session has them: with a size for each symbol that free_dimension_overrides fix."""
    sizes = session.get("free_dimension_overrides", {})
    if not sizes.keys() & facts.symbols:
        return facts
    inputs, outputs = (tuple(_fixed(value, sizes) for value in values) for values in (facts.inputs, facts.outputs))
    return replace(facts, inputs=inputs, outputs=outputs)


def _fixed(value: ValueFacts, sizes: Mapping[str, int]) -> ValueFacts:
    shape = value.tensor.shape
    if shape is None:
        return value
    fixed = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in shape)
    return replace(value, tensor=value.tensor.with_shape(fixed))


def how_to_overrule(model: str, facts: ModelFacts, output: str) -> str:
    """Say of an output's shape that it may be untrue, and how to declare another; empty if the nodes confirm it."""
    if output not in facts.unconfirmed:
        return ""
    shape = facts.unconfirmed[output]
    given = "do not tell its shape" if shape is None else f"make {format_shape(shape)}"
    return (
        f' The graph of model "{model}" says so of its output "{output}", and its nodes {given}. If the shape is '
        f"another one, declare it: outputs: {{{as_key(output)}: {{shape: […]}}}} of the model."
    )
