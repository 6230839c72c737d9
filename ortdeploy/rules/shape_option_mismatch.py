"""What it catches: reshape_input or a TensorRT profile that does not fit the graph, or that does not cover what a job
feeds: its batches, the items of a step each, rows one after the other, adapters.

Why: OpenVINO refuses an input that the graph does not have, and every batch of another shape ("the model input … and
the tensor … are incompatible"). TensorRT drops an incomplete set of profiles. It fails if a dynamic input has no
profile, and builds its engine again, for minutes, if a batch lies outside of one.

Example:

    options: {reshape_input: "image[1,3,224,224]"}      # and batch: {size: 32}

How to fix: use the names and ranks of the graph's inputs, and bounds that include the job's batch size.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.model_runs import model_runs
from ortdeploy.diagnostics import did_you_mean
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.shape_options import InputBounds, ShapeOptions, read_shape_options
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.model_runs import ModelRun, Sizes
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob, ResolvedModel

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
                for run in (run for run in model_runs(job, job.batching.run_size) if run.model is model):
                    for one in shapes.bounds:
                        yield from _against_run(one, run, job)


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


def _against_run(bounds: InputBounds, run: "ModelRun", job: "ResolvedJob") -> Iterator[Finding]:
    """Compare the sizes that the graph leaves open with those that runs are fed, or that adapters have."""
    graph = next((value.tensor.shape for value in run.model.facts.inputs if value.name == bounds.input), None) or ()
    given = [one for facts in job.adapter_facts.values() for one in facts.parameters if one.name == bounds.input]
    fed: list[Sizes] = [one.shape for one in given] or [run.shapes.get(bounds.input, ())]
    for axis, (dimension, low, high) in enumerate(zip(graph, bounds.low, bounds.high, strict=False)):
        sizes = [shape[axis] for shape in fed if axis < len(shape)] if not isinstance(dimension, int) else []
        wrong = next((size for size in sizes if size is not None and not low <= size <= high), None)
        if given or axis != run.axes.of_input(bounds.input):
            problem = None if wrong is None else _of_one(wrong, of_adapter=bool(given))
            what, at = (
                f"dimension {axis} of {bounds.input} be",
                (*job.spec.at, "adapter") if given else job.spec.input.at,
            )
        else:
            problem = _of_rows(run, job, wrong, dimension) if wrong or (sizes and run.fewest < low) else None
            what, at = f"{bounds.input} have", run.at
        if problem:
            rows = " rows" if at == run.at else ""
            detail = f"{bounds.option} lets {what} {low} to {high}{rows}, and {problem}"
            yield Finding(at=at, detail=detail, key=not rows, job=job.spec.name, model=run.model.spec.name)


def _of_one(size: int, *, of_adapter: bool) -> str:
    return f"an adapter has {size}. Widen it." if of_adapter else f"rows have {size}. Widen it, or resize the rows."


def _of_rows(run: "ModelRun", job: "ResolvedJob", wrong: int | None, dimension: "int | str | None") -> str:
    """Say how many rows the runs have: too many or too few at a time, or what is left for a short one."""
    if wrong is not None:
        who = "its state makes the job run" if job.has_state else f"the {'step each' if run.in_each else 'job'} runs"
        return f"{who} {wrong} at a time."
    left = f"{run.fewest} are left for the last batch."
    if not run.in_each:
        return f"{left} Set batch: {{last: pad}} or {{last: drop}}."
    fixed = f"{{free_dimension_overrides: {{{dimension}: {run.rows}}}}}"
    return f"{left} Set session: {fixed} of the model, which fills it up." if dimension else f"{left} Widen it."
