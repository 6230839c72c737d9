"""Decides how the state of an `each` reaches its models: as [rows, …], so that rows run together, or whole."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ortdeploy.facts.models import ModelFacts
from ortdeploy.manifest.pipelines import StepOfPipeline, walk
from ortdeploy.tensors.row_axes import RowAxes


def axes_of_state(
    step: StepOfPipeline, models: Mapping[str, ModelFacts], axes: Mapping[str, RowAxes]
) -> dict[str, RowAxes] | None:
    """Return the row axes of the models that give an each's state, if that of the state they take is known.

    What is handed on has the same axes as what was taken. None: the graphs do not tell which axis of the state counts
    rows, or a model runs row by row, and it is handed on whole, for one row at a time.
    """
    found = dict(axes)
    if any(one.by_row for one in walk(step.steps)):
        return None
    for name, source in step.state.items():
        taken = next(_takers(step, name), None)
        given = next(_givers(step, source), None)
        if taken is None or given is None or not _counts_rows(*taken, models, axes):
            return None
        model, output = given
        known = found.get(model, RowAxes())
        if output not in known.declared:
            axis = axes[taken[0]].of_input(taken[1])
            found[model] = replace(known, outputs={**known.outputs, output: axis})
    return found


def _takers(step: StepOfPipeline, name: str) -> Iterator[tuple[str, str]]:
    """Yield each model, with its input, that takes a value in an each."""
    for one in step.steps:
        if one.kind == "run":
            yield from ((one.name, port) for port, value in one.wires.items() if value == name)


def _givers(step: StepOfPipeline, name: str) -> Iterator[tuple[str, str]]:
    for one in step.steps:
        if one.kind == "run":
            yield from ((one.name, port) for port, value in one.outputs if value == name)


def _counts_rows(model: str, port: str, models: Mapping[str, ModelFacts], axes: Mapping[str, RowAxes]) -> bool:
    """Return whether it is known that an axis of an input counts rows, and how many is open.

    Axis 0 is also what is taken where nothing tells: then another input must name the rows as this one does.
    """
    if model not in models or model not in axes:
        return False
    shapes = {value.name: value.tensor.shape or () for value in models[model].inputs}
    axis, shape = axes[model].of_input(port), shapes.get(port, ())
    if axis is None or axis >= len(shape) or isinstance(shape[axis], int):
        return False
    others = {
        other[place]
        for name, other in shapes.items()
        if name != port and (place := axes[model].of_input(name)) is not None and place < len(other)
    }
    return axis > 0 or (shape[0] is not None and shape[0] in others)
