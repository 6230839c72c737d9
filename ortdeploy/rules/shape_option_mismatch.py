"""What it catches: reshape_input or a TensorRT profile that does not fit the graph, or that does not cover a job's
batches.

Why: OpenVINO refuses an input that the graph does not have, and every batch of another shape ("the model input … and
the tensor … are incompatible"). TensorRT drops an incomplete set of profiles. It fails if a dynamic input has no
profile, and builds its engine again, for minutes, if a batch lies outside of one.

Example:

    options: {reshape_input: "image[1,3,224,224]"}      # and batch: {size: 32}

How to fix: use the names and ranks of the graph's inputs, and bounds that include the job's batch size.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.shape_options import InputBounds, ShapeOptions, read_shape_options
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob, ResolvedModel
    from ortdeploy.manifest.document import Path
    from ortdeploy.tensors.row_axes import RowAxes
    from ortdeploy.tensors.types import Shape

RULE = Rule(id="shape-option-mismatch", summary="Provider's input shapes do not fit")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for entry in (entry for session in model.sessions for entry in session.written):
            provider = find_provider(entry.name)
            if provider is None or model.facts.problem is not None:
                continue
            shapes = read_shape_options(provider, entry.options)
            for option, detail in (*shapes.problems, *_against_graph(shapes, model)):
                yield Finding(at=(*entry.at, "options", option), detail=detail, key=True, model=model.spec.name)
            for job in deployment.jobs if not shapes.problems else ():
                for axes, fed in _runs(model, job):
                    bounds = tuple(_with_rows_first(one, axes) for one in shapes.bounds if one.input in fed)
                    yield from _against_batches(bounds, job, model)
                    yield from _against_rows(bounds, fed, job, model)


def _runs(model: "ResolvedModel", job: "ResolvedJob") -> "Iterator[tuple[RowAxes, dict[str, Shape]]]":
    """Yield what each run of a model with whole batches is fed: the row axes, and shapes by input, rows first.

    Sizes that the graph fixes are left out.
    """
    arriving = {one.value.name: one.final.shape for one in job.bindings}
    if job.model is model:
        yield job.axes, {one.value.name: _open(one.target.shape or (), one.final.shape or ()) for one in job.bindings}
    steps = job.pipeline.types.steps if job.pipeline and job.pipeline.types and not job.has_state else ()
    for step in steps:
        is_whole = step.spec.kind == "run" and not step.spec.by_row and step.fixed_rows is None
        if is_whole and step.spec.name == model.spec.name:
            graph = {port.name: port.tensor.shape or () for port in step.ports}
            given = {port: arriving.get(step.wires.get(port, "")) or one.shape for port, one in step.types.items()}
            yield step.axes, {port: _open(graph.get(port, ()), shape or ()) for port, shape in given.items()}


def _open(graph: "Shape", fed: "Shape") -> "Shape":
    return tuple(None if isinstance(told, int) else size for told, size in zip(graph, fed, strict=False))


def _with_rows_first(bounds: InputBounds, axes: "RowAxes") -> InputBounds:
    axis = axes.of_input(bounds.input)
    return replace(bounds, low=_moved(bounds.low, axis), high=_moved(bounds.high, axis))


def _moved(sizes: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return (sizes[axis], *sizes[:axis], *sizes[axis + 1 :]) if axis and axis < len(sizes) else sizes


def _against_graph(shapes: ShapeOptions, model: "ResolvedModel") -> Iterator[tuple[str, str]]:
    inputs = {value.name: value.tensor.shape for value in model.facts.inputs}
    for bounds in shapes.bounds:
        if bounds.input not in inputs:
            yield bounds.option, f'The graph has no input "{bounds.input}". {did_you_mean(bounds.input, inputs)}'
            continue
        shape = inputs[bounds.input]
        if shape is not None and (
            len(shape) != len(bounds.low) or not all(map(_allows, shape, bounds.low, bounds.high))
        ):
            shown = ", ".join("?" if size is None else str(size) for size in shape)
            yield bounds.option, f"The graph's {bounds.input} is [{shown}], and {bounds.option} does not fit it."
    if shapes.complete and shapes.bounds:
        for name in inputs.keys() - {bounds.input for bounds in shapes.bounds}:
            if any(not isinstance(size, int) for size in inputs[name] or (None,)):
                yield shapes.bounds[0].option, f'Input "{name}" has no fixed shape and no profile. Give it one too.'


def _allows(size: "int | str | None", low: int, high: int) -> bool:
    return not isinstance(size, int) or low <= size <= high


def _against_batches(
    bounds: "tuple[InputBounds, ...]", job: "ResolvedJob", model: "ResolvedModel"
) -> Iterator[Finding]:
    """Compare the rows of every run with the bounds of the first dimension."""
    at: Path = (*job.spec.at, "batch", "size")
    size = job.batching.size
    for one in bounds:
        if size is None or not one.low:
            continue
        low, high = one.low[0], one.high[0]
        rest = job.batching.short_batch(job.input.rows or 0)
        if not low <= size <= high:
            detail = f"{one.option} lets {one.input} have {low} to {high} rows, and the job runs {size} at a time."
            yield Finding(at=at, detail=detail, job=job.spec.name, model=model.spec.name)
        elif 0 < rest < low:
            detail = (
                f"{one.option} lets {one.input} have {low} to {high} rows, and {rest} are left for the last batch. "
                "Set batch: {last: pad} or {last: drop}."
            )
            yield Finding(at=at[:-1], detail=detail, job=job.spec.name, model=model.spec.name)


def _against_rows(
    bounds: "tuple[InputBounds, ...]", fed: "dict[str, Shape]", job: "ResolvedJob", model: "ResolvedModel"
) -> Iterator[Finding]:
    """Compare the sizes of prepared rows with the bounds, if the graph leaves them open."""
    first = 1 if job.batching.size else 0
    for one in bounds:
        sizes = zip(fed[one.input][1:], one.low[first:], one.high[first:], strict=False)
        for axis, (size, low, high) in enumerate(sizes, first):
            if isinstance(size, int) and not low <= size <= high:
                detail = (
                    f"{one.option} lets dimension {axis} of {one.input} be {low} to {high}, and rows have {size}. "
                    "Widen it, or resize the rows."
                )
                yield Finding(at=job.spec.input.at, detail=detail, key=True, job=job.spec.name, model=model.spec.name)
