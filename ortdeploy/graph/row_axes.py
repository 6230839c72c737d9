"""Finds the axis of a model's inputs and outputs that counts rows: declared, or derived from the graph.

A derived axis is a reading of the graph, not a proof: the first rows of a job prove it when it runs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.manifest.spec import ModelSpec, TensorSpec
from ortdeploy.tensors.row_axes import RowAxes
from ortdeploy.tensors.types import Dimension, Shape

_BATCH = re.compile(r"(in(put)?_?)?(batch|bsz|bs)_?(size|dim|axis)?_?\d*", re.IGNORECASE)
"""Symbols that exporters give to the dimension of the rows, wherever it stands."""


def derive_axes(model: ModelSpec, facts: ModelFacts) -> RowAxes:
    """Return the row axes of a model."""
    inputs = input_axes(facts.inputs, model.inputs)
    rows = _row_sizes(facts.inputs, inputs)
    declared = {one.name: _written(one) for one in model.outputs if one.row_axis is not None}
    derived = {
        value.name: _output_axis(value, rows, facts.row_followers.get(value.name))
        for value in facts.outputs
        if value.name not in declared
    }
    return RowAxes(inputs=inputs, outputs={**derived, **declared}, declared=frozenset(declared))


def input_axes(inputs: Sequence[ValueFacts], declared: Sequence[TensorSpec]) -> dict[str, int | None]:
    """Return the axis of each input that counts rows; None if the input is not by row, such as a scalar."""
    written = {one.name: _written(one) for one in declared if one.row_axis is not None}
    symbols = _row_symbols(inputs, written)
    return {
        value.name: written[value.name] if value.name in written else _input_axis(value.tensor.shape, symbols)
        for value in inputs
    }


def is_named(value: ValueFacts, inputs: Sequence[ValueFacts], axes: Mapping[str, int | None]) -> bool:
    """Return whether the names in the graph alone tell which axis of an output counts rows."""
    symbols = {size for size in _row_sizes(inputs, axes) if isinstance(size, str)}
    return value.kind != "tensor" or not value.tensor.shape or bool(symbols.intersection(value.tensor.shape))


def _written(declared: TensorSpec) -> int | None:
    return declared.row_axis if isinstance(declared.row_axis, int) else None


def _row_symbols(inputs: Sequence[ValueFacts], written: Mapping[str, int | None]) -> frozenset[str]:
    """Return the symbols that count rows: those at declared axes, else exporters' names for a batch, else the first."""
    of_declared = set(_at_axes(inputs, written))
    if of_declared:
        return frozenset(of_declared)
    symbols = [size for value in inputs for size in value.tensor.shape or () if isinstance(size, str)]
    batches = {symbol for symbol in symbols if _BATCH.fullmatch(symbol)}
    if batches:
        return frozenset(batches)
    first = next((value.tensor.shape for value in inputs if not value.optional and value.tensor.shape), ())
    return frozenset(size for size in first[:1] if isinstance(size, str))


def _at_axes(inputs: Sequence[ValueFacts], axes: Mapping[str, int | None]) -> Iterator[str]:
    for size in _row_sizes([value for value in inputs if value.name in axes], axes):
        if isinstance(size, str):
            yield size


def _row_sizes(inputs: Sequence[ValueFacts], axes: Mapping[str, int | None]) -> list[Dimension]:
    """Return the sizes at the row axes of the inputs that must be fed, if their shapes have that axis."""
    pairs = ((value.tensor.shape or (), axes.get(value.name, 0)) for value in inputs if not value.optional)
    return [shape[axis] for shape, axis in pairs if axis is not None and axis < len(shape)]


def _input_axis(shape: Shape | None, symbols: frozenset[str]) -> int | None:
    if shape == ():
        return None
    return _first_of([axis for axis, size in enumerate(shape or ()) if size in symbols], default=0)


def _output_axis(value: ValueFacts, rows: Sequence[Dimension], follows: tuple[int, ...] | None) -> int | None:
    """Return its axis: by the inputs' symbols, by what inference says, by a batch's name, by sizes; else 0."""
    shape = value.tensor.shape
    if value.kind != "tensor" or shape is None:
        return 0
    named = [axis for axis, size in enumerate(shape) if isinstance(size, str) and size in rows]
    if named:
        return _first_of(named)
    fixed = {size for size in rows if isinstance(size, int)}
    if fixed == {1} and shape[:1] == (1,):  # the one row of a run, whatever it was made of
        return 0
    if follows is not None:
        return _first_of(list(follows)) if follows else None
    called = [axis for axis, size in enumerate(shape) if isinstance(size, str) and _BATCH.fullmatch(size)]
    if called:
        return _first_of(called)
    equal = [axis for axis, size in enumerate(shape) if isinstance(size, int) and size in fixed]
    if not fixed or 0 in equal or len(equal) != 1 or not isinstance(shape[0], int):
        return 0 if shape else None
    return equal[0]


def _first_of(axes: Sequence[int], default: int = 0) -> int:
    """Return axis 0 if it is among several, else the first of them."""
    return 0 if 0 in axes else axes[0] if axes else default
