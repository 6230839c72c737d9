"""Checks the batch sizes of a deployment's jobs on their graphs, by shape inference: nothing is run."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ortdeploy.deployment.model_runs import model_runs
from ortdeploy.deployment.resolved import Deployment, ResolvedJob
from ortdeploy.facts.models import ModelFacts
from ortdeploy.facts.preflight import LargestValue, RefusedBatch
from ortdeploy.plan.batching import SEARCHED
from ortdeploy.planning.preflight.memory_estimate import runs_of
from ortdeploy.planning.remembered.graph_cache import infer_shapes, largest_value
from ortdeploy.providers.catalogue import COUNTED, NVIDIA, find_provider
from ortdeploy.tensors.types import format_shape, shapes_agree

_OTHERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batch sizes that are tried for the advice in a diagnostic, if the job's own does not fit."""


def try_batches(deployment: Deployment) -> dict[str, RefusedBatch]:
    """Return the batch sizes that the jobs' graphs refuse, by job; no rule may have found an error before."""
    return {job.spec.name: trial for job in deployment.jobs for trial in _try(job)}


def find_largest(deployment: Deployment) -> dict[str, tuple[LargestValue, ...]]:
    """Return the largest value of each model that a job runs on an NVIDIA GPU, by job."""
    return {job.spec.name: tuple(_largest(job, job.batching.run_size)) for job in deployment.jobs if job.has_work}


def most_searched(job: ResolvedJob) -> int | None:
    """Return the largest batch that `auto` may choose on an NVIDIA GPU; None: any, or none is searched for."""
    if not (job.batching.auto and job.has_work):
        return None
    place = bisect_left(SEARCHED, True, key=lambda rows: any(one.elements > COUNTED for one in _largest(job, rows)))
    return None if place == len(SEARCHED) else SEARCHED[max(place - 1, 0)]


def _largest(job: ResolvedJob, rows: int) -> Iterator[LargestValue]:
    for model, shapes in runs_of(job, rows):
        known = (find_provider(provider.name) for session in model.usable for provider in session.chain)
        if any(provider is not None and provider.memory == NVIDIA for provider in known):
            name, elements = largest_value(model.facts.skeleton, tuple(shapes.items()))
            yield LargestValue(model=model.spec.name, name=name, elements=elements)


def _try(job: ResolvedJob) -> Iterator[RefusedBatch]:
    """Yield the first batch size of the job that does not fit, if there is one."""
    for size in job.batching.sizes_run(job.input.rows) if job.has_work else ():
        problem = _problem(job, size)
        if problem is not None:
            fitting = tuple(other for other in _OTHERS if other != size and _problem(job, other) is None)
            yield replace(problem, fitting=() if problem.of_items else fitting)
            return


def _problem(job: ResolvedJob, rows: int) -> RefusedBatch | None:
    """Return why runs cannot have this number of rows, and the output that would have another one, if any."""
    if job.pipeline is not None:
        return _problem_of_pipeline(job, rows)
    inferred = infer_shapes(job.model.facts.skeleton, job.run_shapes(rows))
    if inferred.problem is not None:
        return RefusedBatch(rows=rows, problem=inferred.problem)
    for name, shape in inferred.outputs.items():
        axis = job.axes.of_output(name)
        if name in job.needed and shape and axis is not None and axis < len(shape) and shape[axis] not in {None, rows}:
            text = f"output {name} is {format_shape(shape)}, which has {shape[axis]} at axis {axis}"
            return RefusedBatch(rows=rows, problem=text, output=name)
    return None


def _problem_of_pipeline(job: ResolvedJob, rows: int) -> RefusedBatch | None:
    """Return why a model of a pipeline cannot be run with a number of rows, or with the items of a step each."""
    for run in model_runs(job, rows):
        for count in dict.fromkeys((run.rows, run.fewest)) if run.in_each else (run.rows,):
            shapes = run.of_rows(count)
            graph = run.model.facts
            text = next(_fixed_otherwise(graph, shapes), None) or infer_shapes(graph.skeleton, shapes).problem
            if text is not None:
                what = f'model "{run.model.spec.name}" with {count} {"items" if run.in_each else "rows"}: {text}'
                return RefusedBatch(rows=rows, problem=what, of_items=run.in_each)
    return None


def _fixed_otherwise(graph: ModelFacts, shapes: Mapping[str, Sequence[int | None]]) -> Iterator[str]:
    """Yield the inputs to which a graph gives another shape than they are fed."""
    for value in graph.inputs:
        fed, taken = shapes.get(value.name), value.tensor.shape
        if fed is not None and taken is not None and not shapes_agree(tuple(fed), taken):
            yield f"{value.name} is {format_shape(taken)} in the graph, and {format_shape(tuple(fed))} is fed"
