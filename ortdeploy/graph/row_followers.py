"""Finds the axes of a graph's outputs that grow with the rows, by shape inference with two numbers of rows."""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ortdeploy.facts.models import InferredShapes, ModelFacts, ValueFacts
from ortdeploy.graph.row_axes import input_axes, is_named
from ortdeploy.manifest.spec import TensorSpec
from ortdeploy.tensors.types import Shape

FEW_AND_MORE = (17, 19)
"""Two numbers of rows that no other size of a model is likely to be."""


Infer = Callable[[bytes, Mapping[str, Sequence[int | None]]], InferredShapes]


def with_row_followers(facts: ModelFacts, declared: Sequence[TensorSpec], infer: Infer) -> ModelFacts:
    """Return the facts with the axes that follow the rows, of outputs whose names do not tell.

    `declared` are the inputs as the manifest has them: they may say which axis counts rows. `infer` is
    `shapes.infer_shapes`, or what remembers what that has told.
    """
    axes = input_axes(facts.inputs, declared)
    if not facts.skeleton or all(is_named(value, facts.inputs, axes) for value in facts.outputs):
        return facts
    few, more = (infer(facts.skeleton, _fed(facts.inputs, axes, rows)) for rows in FEW_AND_MORE)
    if few.problem or more.problem:
        return facts
    found = {name: following(shape, more.outputs.get(name)) for name, shape in few.outputs.items()}
    return replace(facts, row_followers={name: one for name, one in found.items() if one is not None})


def _fed(inputs: Sequence[ValueFacts], axes: Mapping[str, int | None], rows: int) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of the inputs for a number of rows, with the other sizes as the graph has them."""
    shapes = {value.name: (value.tensor.shape or (), axes[value.name]) for value in inputs if not value.optional}
    return {
        name: tuple(rows if at == axis else size if isinstance(size, int) else None for at, size in enumerate(shape))
        for name, (shape, axis) in shapes.items()
    }


def following(few: Shape | None, more: Shape | None) -> tuple[int, ...] | None:
    """Return the axes that are the number of rows both times; None if a size that is not known may be one."""
    if few is None or more is None or len(few) != len(more):
        return None
    pairs = list(zip(few, more, strict=True))
    found = tuple(axis for axis, pair in enumerate(pairs) if pair == FEW_AND_MORE)
    if found:
        return found
    return () if all(isinstance(size, int) for pair in pairs for size in pair) else None
