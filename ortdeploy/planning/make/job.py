"""Writes down one job: its inputs, steps, batches and limits."""

from collections.abc import Iterator, Sequence
from typing import Any

from ortdeploy.deployment.bound_inputs import Binding
from ortdeploy.deployment.number_formats import compared_within, formats_of, graph_formats, narrowing_of
from ortdeploy.deployment.resolved import ResolvedJob, ResolvedModel
from ortdeploy.facts.data import PLAIN, TEXT_FORMATS
from ortdeploy.facts.models import NodeFacts
from ortdeploy.manifest.spec import StepSpec
from ortdeploy.plan.steps import (
    JobErrors,
    JobInput,
    JobLimits,
    JobOutput,
    PlannedInput,
    PlannedStep,
    RowCheck,
    RunJob,
    UpstreamJob,
)
from ortdeploy.planning.make.arrived import with_arrived
from ortdeploy.planning.make.op_lines import OpLine, op_lines, planned_line
from ortdeploy.presets.row_columns import filler_of
from ortdeploy.providers.catalogue import CPU
from ortdeploy.sinks.settled import settled_types
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.settings import said
from ortdeploy.tensors.tolerances import TOLERANCES
from ortdeploy.tensors.types import FLOATING, Shape, TensorType


def planned_job(job: ResolvedJob) -> RunJob:
    """Write down one job, in which no rule found an error."""
    spec = job.spec
    fetch = tuple(name for name in job.outputs if name in job.needed)
    lines = tuple(op_lines(job))
    return RunJob(
        job=spec.name,
        session=job.model.spec.name,
        model=job.model.spec.name,
        adapters=spec.adapters,
        input=_job_input(job),
        inputs=tuple(_planned_input(binding, job, lines) for binding in job.bindings),
        batching=job.batching,
        fetch=fetch,
        postprocess=tuple(_planned_postprocess(job, lines)),
        output=planned_output(job),
        errors=_job_errors(job, fetch),
        limits=JobLimits(memory=spec.limits.memory, disk=spec.limits.disk, threads=spec.limits.threads),
        identity=job.identity,
        row_axes=job.moved_axes,
        values=tuple(one.planned for one in job.values),
        row_check=_row_check(job),
        trim=any(model.spec.memory.trim for model in job.models),
        timing=spec.timing,
        expect=spec.expect,
        thread_layout=job.thread_layout.name if job.thread_layout else None,
    )


def _left_out(job: ResolvedJob) -> dict[str, Any]:
    """Return by column what an empty value stands for where the manifest says it of all rows: that it holds."""
    found: dict[str, Any] = {}
    writes = job.pipeline is not None and job.model.spec.generates
    typed = job.input.format not in TEXT_FORMATS
    for binding in job.bindings if writes else ():
        for column in binding.columns:
            dtype = job.input.columns[column].dtype if typed and column in job.input.columns else binding.source.dtype
            found[column] = filler_of(binding.value.name, dtype)
    return {column: filler for column, filler in found.items() if filler is not None}


def _job_input(job: ResolvedJob) -> JobInput:
    spec, facts = job.spec.input, job.input
    planned = JobInput(
        format=facts.format or "",
        patterns=spec.paths,
        files=(),
        gone=(),
        first_row=0,
        rows=None,
        row_type=facts.row_type,
        settings=said(SOURCES[facts.format], spec.settings) if facts.format else spec.settings,
        missing={**_left_out(job), **job.missing},
        key=job.key,
        on_change="append" if spec.jobs else spec.arrivals.on_change,
        types=_input_types(job),
        dialect=spec.dialect or PLAIN,
        upstream=_upstream(job),
        elsewhere=facts.problem.detail if job.is_input_elsewhere and facts.problem else None,
    )
    return with_arrived(planned, facts)


def _input_types(job: ResolvedJob) -> dict[str, str]:
    """Return the types that columns have in all files, of those that are fed or carried."""
    used = {*job.key, *(name for binding in job.bindings for name in binding.columns)}
    return {name: kind for name, kind in job.input.types.items() if name in used}


def _upstream(job: ResolvedJob) -> UpstreamJob | None:
    if job.upstream is None:
        return None
    return UpstreamJob(job=job.upstream.name, output=job.upstream.output.path, names=job.input.names)


def planned_output(job: ResolvedJob) -> JobOutput:
    """Return the output of a job: its place, format and columns."""
    spec, facts = job.spec.output, job.output
    return JobOutput(
        path=spec.path,
        format=spec.format,
        columns=job.columns,
        dtypes=tuple(map(job.dtype, job.columns)),
        row_shapes=tuple(map(job.row_shape, job.columns)),
        images=spec.images,
        recordings=spec.recordings,
        removable=spec.removable,
        on_upgrade=spec.on_upgrade,
        upload=spec.url,
        reports=job.spec.reports,
        committed_rows=facts.rows,
        replaces=facts.run if facts.state == "stale" else None,
        aside=facts.aside,
        explode=spec.explode,
        upgraded_at=job.upgraded_at,
        changed=job.changed,
        keep=spec.keep,
        readers=job.readers,
        types=spec.types,
        settled=settled_types(spec.format, job.key, job.input.types, spec.types),
    )


def _job_errors(job: ResolvedJob, fetch: Sequence[str]) -> JobErrors:
    spec = job.spec
    return JobErrors(
        on_nan=spec.nan_policy,
        check_finite=tuple(_can_be_nan(job, fetch)) if spec.nan_policy != "keep" else (),
        max_failed=spec.max_failed,
        max_consecutive=spec.max_consecutive,
        retries=spec.retries,
        attempts=spec.attempts,
        progress_timeout=spec.progress_timeout,
        run_timeout=spec.run_timeout,
    )


_DIVISIONS = {"Div", "Mod"}


def _row_check(job: ResolvedJob) -> RowCheck:
    """Return how much the results of a job's rows may depend on the rows beside them."""
    models = [model.spec for model in job.models]
    free = [model.name for model in models if not model.checks_rows]
    declared = tuple(model.name for model in models if not model.checks_rows or model.row_tolerance)
    if job.has_state:
        return RowCheck(counts=False, why_not="each row takes the state of the one before", declared=declared)
    if job.batching.size is None:
        return RowCheck(counts=False, why_not="each row is one run", declared=declared)
    if free:
        return RowCheck(counts=True, why_not=f"row_independence: false of {' and '.join(free)}", declared=declared)
    tolerances = [_row_tolerance(model) for model in job.models or (job.model,)]
    agree = (max(rtol for rtol, _ in tolerances), max(atol for _, atol in tolerances))
    may_trap = any(_divides_integers(node) for model in job.models for node in model.facts.nodes)
    return RowCheck(counts=True, agree=agree, declared=declared, may_trap=may_trap)


def _divides_integers(node: NodeFacts) -> bool:
    """Return whether a node, or one in its body, divides whole numbers: by zero, the processor ends the process."""
    whole = any(kind.startswith(("tensor(int", "tensor(uint")) for kind in node.types.values())
    return (node.operator in _DIVISIONS and (whole or not node.types)) or any(map(_divides_integers, node.body))


def _row_tolerance(model: ResolvedModel) -> tuple[float, float]:
    """Return how much rows of a model may differ: as declared, or by the noise of its element types and providers.

    Another provider than the CPU's may choose another algorithm, and another precision, for another number of rows.
    """
    if model.spec.row_tolerance is not None:
        return model.spec.row_tolerance
    chains = [session.chain for session in model.usable]
    formats = graph_formats(model) | {one.format for chain in chains for one in formats_of(model, chain)}
    found = [TOLERANCES[one] for one in formats if one in TOLERANCES]
    if any(provider.name != CPU for chain in chains for provider in chain):
        found.append(compared_within(model))
    return max(found, default=TOLERANCES["float32"])


def _can_be_nan(job: ResolvedJob, fetch: Sequence[str]) -> Iterator[str]:
    """Yield the outputs that are, or may contain, floating-point numbers, and the columns that steps make of them.

    An operator, such as Log, makes NaN of finite numbers too.
    """
    values = {value.name: value for value in job.model.facts.outputs}
    yield from (name for name in fetch if job.outputs[name].dtype in FLOATING or values[name].kind != "tensor")
    made = (name for name in job.columns if name not in job.outputs)
    yield from (name for name in made if job.results[name].dtype in FLOATING)


def _planned_step(step: StepSpec, tensor: TensorType) -> PlannedStep:
    return PlannedStep(
        name=step.name,
        options=step.options,
        results=step.results,
        dtype=tensor.dtype,
        shape=tensor.shape,
        layout=tensor.layout,
    )


def _planned_op(line: OpLine) -> PlannedStep:
    return PlannedStep(
        name="op",
        options={},
        results=tuple(value.name for value in line.graph.outputs),
        dtype=None,
        shape=None,
        layout=None,
        op=planned_line(line),
    )


def _planned_prepare(binding: Binding, lines: Sequence[OpLine]) -> Iterator[PlannedStep]:
    for step, tensor in zip(binding.steps, binding.stages, strict=False):
        if step.op is None:
            yield _planned_step(step, tensor)
        yield from (_planned_op(line) for line in lines if line.last == step.at)


def _planned_input(binding: Binding, job: ResolvedJob, lines: Sequence[OpLine]) -> PlannedInput:
    steps = tuple(_planned_prepare(binding, lines))
    return PlannedInput(
        name=binding.value.name,
        columns=binding.columns,
        stacked=binding.stacked,
        read_dtype=None if binding.guessed else binding.source.dtype,
        steps=steps,
        dtype=binding.target.dtype or "",
        shape=_contract(binding, job),
        limits=_limits(binding),
        narrowed_by=narrowing_of(job.model, binding.target.dtype) if job.pipeline is None else None,  # its steps check
    )


def _limits(binding: Binding) -> tuple[float, float] | None:
    """Return the limits of an input's values: the declared ones, and those of a constant table that they index."""
    ranges = [limits for limits in (binding.declared and binding.declared.limits, binding.value.limits) if limits]
    return (max(low for low, _ in ranges), min(high for _, high in ranges)) if ranges else None


def _contract(binding: Binding, job: ResolvedJob) -> Shape | None:
    """Return the shape that every run's tensor must have: the graph's, with the sizes that only the manifest fixes."""
    graph = binding.target.shape
    declared = binding.declared_shape
    if graph is None or declared is None:
        return declared if graph is None else graph
    first = graph[0] if job.batching.size and graph else None
    merged = [want if isinstance(want, int) else have for have, want in zip(graph, declared, strict=True)]
    return (first, *merged[1:]) if job.batching.size else tuple(merged)


def _planned_postprocess(job: ResolvedJob, lines: Sequence[OpLine]) -> Iterator[PlannedStep]:
    for step in job.postprocess:
        if step.op is not None:
            yield from (_planned_op(line) for line in lines if line.last == step.at)
        elif job.needed.intersection(step.results):
            (name,) = step.reads
            yield _planned_step(step, job.results[name])
