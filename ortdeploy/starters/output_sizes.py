"""Tells the sizes of outputs that a graph fixes from those that grow with its inputs, by shape inference alone."""

from collections.abc import Mapping, Sequence

from ortdeploy.facts.models import ModelFacts
from ortdeploy.graph.shapes import infer_shapes
from ortdeploy.tensors.types import Dimension, Shape

_MORE = 32
"""By how much an open size is made larger: networks of pictures halve them five times."""


def sizes_of(facts: ModelFacts, fed: Mapping[str, tuple[int, ...]]) -> Mapping[str, Shape]:
    """Return the shapes of outputs: numbers where the graph fixes them, whatever is fed, and None elsewhere.

    `fed` are the shapes of inputs that the graph takes. The first axis of an output is not asked about.
    """
    written = {one.name: one.tensor.shape for one in facts.outputs if one.tensor.shape is not None}
    if len(written) == len(facts.outputs) and all(map(_is_told, written.values())):
        return {name: tuple(map(_number, shape)) for name, shape in written.items()}
    as_fed = infer_shapes(facts.skeleton, fed).outputs
    larger = infer_shapes(facts.skeleton, _larger(facts, fed)).outputs
    return {
        name: _fixed(written.get(name), as_fed.get(name), larger.get(name))
        for name in {*written, *as_fed}
        if written.get(name) is not None or as_fed.get(name) is not None
    }


def _is_told(shape: Shape) -> bool:
    return all(isinstance(size, int) for size in shape[1:])


def _number(size: Dimension) -> int | None:
    return size if isinstance(size, int) and size > 0 else None


def _larger(facts: ModelFacts, fed: Mapping[str, tuple[int, ...]]) -> dict[str, Sequence[int]]:
    """Return the shapes with each size larger that the graph leaves open."""
    shapes = {one.name: one.tensor.shape or () for one in facts.inputs}
    return {
        name: [
            size if isinstance(open_, int) and open_ > 0 else size + _MORE
            for size, open_ in zip(sizes, shapes.get(name, sizes), strict=False)
        ]
        for name, sizes in fed.items()
    }


def _fixed(written: Shape | None, as_fed: Shape | None, larger: Shape | None) -> Shape:
    """Return the sizes that the graph says in words, or that inference finds twice."""
    found = as_fed if as_fed is not None and larger is not None and len(as_fed) == len(larger) else None
    if written is None:
        written = (None,) * len(found or ())
    if found is None or len(found) != len(written):
        return tuple(map(_number, written))
    return tuple(
        said if isinstance(said, int) and said > 0 else (_number(one) if one == other else None)
        for said, one, other in zip(written, found, larger or (), strict=True)
    )
