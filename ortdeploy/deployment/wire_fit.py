"""Whether a value fits the input of a model that a wire leads to, and what to write if it does not."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ortdeploy.deployment.constant_inputs import FedValue
from ortdeploy.deployment.typed_steps import WireProblem
from ortdeploy.diagnostics import as_key, did_you_mean, with_article
from ortdeploy.facts.data import ConstantArray, FileFacts
from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.manifest.pipelines import CONSTANT, StepOfPipeline
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.layouts import fitting_layout, layout_step
from ortdeploy.tensors.row_axes import HOW_TO_DECLARE, RowAxes, rows_first, to_front
from ortdeploy.tensors.types import ROWS, WIDER, Dimension, TensorType, dimensions_agree, row_in_words


def how_to_take_one_value(model: str, port: str) -> str:
    """Return how an input of a model that is taken for one by row gets one value for all rows."""
    return (
        f' If input "{port}" of model "{model}" is the same for all rows, say so: '
        f"inputs: {{{as_key(port)}: {{row_axis: none}}}} of the model; it then takes a constant from a file."
    )


def how_to_feed_whole(model: str, port: str, name: str) -> str:
    """Return why an input that is not by row cannot take a value of each row, and what it takes."""
    return (
        f'Input "{port}" of model "{model}" is not by row, and ${name} is one of each row. Write one value in its '
        f"place, or let the job feed it: input: {{values: {{{name}: …}}}}."
    )


def is_handed_on(made: TensorType, taken: TensorType) -> bool:
    """Return whether what a row leaves is what the next one takes."""
    fits = taken.shape is None or made.shape is None or len(taken.shape) == len(made.shape)
    sizes = zip(made.shape or (), taken.shape or (), strict=False)
    return made.dtype == taken.dtype and fits and all(dimensions_agree(*pair) for pair in sizes)


def open_ranks(inputs: dict[str, ValueFacts], steps: Sequence[StepOfPipeline]) -> None:
    """Leave the shape of an input open if all its readers take several ranks, as mono does: rows may have each."""
    readers = list(_readers(steps))
    for name, value in inputs.items():
        found = [takes_ranks for reads, takes_ranks in readers if reads == name]
        if found and all(found):
            inputs[name] = replace(value, tensor=value.tensor.with_shape(None))


def _readers(steps: Sequence[StepOfPipeline]) -> Iterator[tuple[str, bool]]:
    """Yield each value that a step reads, and whether the step takes several ranks."""
    for step in steps:
        takes_ranks = step.kind == "do" and OPERATIONS[step.name].contract.takes_ranks
        yield from ((name, takes_ranks) for name in step.wires.values())
        if step.kind == "each":
            yield step.name, False
            yield from _readers(step.steps)


def with_rows_first(value: ValueFacts, axis: int | None) -> ValueFacts:
    """Return an input whose type has its rows first."""
    return replace(value, tensor=rows_first(value.tensor, axis)) if axis else value


def misfit(have: TensorType, want: TensorType, solved: dict[str, Dimension]) -> str | None:
    """Say why a value does not fit an input, rows first in both; symbols of the graph are solved on the way."""
    if have.dtype and want.dtype and have.dtype != WIDER.get(want.dtype, want.dtype):
        return f"Add a step before: {{do: cast, in: {{x: $…, cast: {want.dtype}}}, out: …}}."
    if have.layout and want.layout and have.layout != want.layout:
        return f"Add a step before: {{do: layout, in: {{x: $…, layout: {want.layout}}}, out: …}}."
    if have.shape is None or want.shape is None:
        return None
    if not want.shape and have.shape:
        return "It has no dimension for rows: one value is for a whole run. Write the value in its place."
    if len(have.shape) != len(want.shape):
        return f"A row is {row_in_words(have.shape[1:])}, and the model wants {row_in_words(want.shape[1:])}."
    problem = _unsolved(have.shape[1:], want.shape[1:], solved)
    layout = fitting_layout(have, want.shape[1:], want.layout) if problem else None
    if layout is not None:
        return f"Add a step before: {{do: layout, in: {{x: $…, {layout_step(have, layout)}}}, out: …}}."
    return problem


def _unsolved(have: Sequence[Dimension], want: Sequence[Dimension], solved: dict[str, Dimension]) -> str | None:
    for axis, (size, wanted) in enumerate(zip(have, want, strict=True)):
        known = solved.setdefault(wanted, size) if isinstance(wanted, str) else wanted
        if not dimensions_agree(size, known):
            symbol = f" (it is {wanted}, which is {known} already)" if isinstance(wanted, str) else ""
            return f"Dimension {axis} of a row is {size}, the model wants {known}{symbol}."
        if isinstance(wanted, str) and solved[wanted] is None:
            solved[wanted] = size
    return None


def fixed_rows(ports: Sequence[ValueFacts], axes: RowAxes, constants: Sequence[FedValue]) -> dict[str, int]:
    """Return the number of rows of each input whose graph takes only one; constants are fed as many."""
    shapes = {port.name: port.tensor.shape for port in ports if axes.of_input(port.name) is not None}
    shapes |= {one.value.name: one.target.shape for one in constants if one.axis is not None}
    return {name: shape[0] for name, shape in shapes.items() if shape and isinstance(shape[0], int) and shape[0] > 0}


def type_of_output(
    step: StepOfPipeline,
    port: str,
    model: ModelFacts,
    axis: int | None,
    solved: Mapping[str, Dimension],
    *,
    is_state: bool,
) -> TensorType | str:
    """Return the type of what an output of a model gives, rows first, or why it gives nothing for each row.

    `axis` has the rows; `solved` are the sizes that symbols of the graph have. State has no rows.
    """
    output = next((value for value in model.outputs if value.name == port), None)
    if output is None:
        known = [value.name for value in model.outputs]
        return f'Model "{step.name}" has no output "{port}". {did_you_mean(port, known)}'
    if output.kind != "tensor":
        return f'Output "{port}" is {with_article(output.kind)}; values of a pipeline are tensors.'
    shape, dtype = output.tensor.shape, output.tensor.dtype
    if is_state:
        return output.tensor
    dtype = WIDER.get(dtype, dtype) if dtype else None
    if step.by_row:
        return TensorType(dtype, None if shape is None else (ROWS, *shape))
    if shape is not None and not shape:
        return f'Output "{port}" is a scalar of a whole run, and not of each row.'
    if axis is None:
        return f'Output "{port}" of model "{step.name}" ({output.tensor}) is not by row. {HOW_TO_DECLARE}'
    shape = to_front(shape, axis)
    sizes = tuple(solved.get(size, None) if isinstance(size, str) else size for size in shape or ())
    return TensorType(dtype, (ROWS, *sizes[1:]) if shape else None)


def content_of_file(step: StepOfPipeline, files: Mapping[str, FileFacts]) -> ConstantArray | WireProblem | None:
    """Return what the file of a constant holds, or why it cannot be one; None if rules say why."""
    path, name = step.options[CONSTANT], step.options.get("name")
    file = files.get(path)
    if file is None or file.problem is not None:
        return None
    if name not in file.arrays and (name is not None or len(file.arrays) != 1):
        told = did_you_mean(name, file.arrays) if name else f"Its names: {', '.join(file.arrays)}. Write name: …"
        detail = f"{path} holds {f'no array {name}' if name else 'several arrays'}. {told}"
        return WireProblem(at=(*step.at, "name" if name else CONSTANT), detail=detail)
    array = next(iter(file.arrays.values())) if name is None else file.arrays[name]
    return WireProblem(at=(*step.at, CONSTANT), detail=f"{path} {array.problem}.") if array.problem else array
