"""Joins a spec with facts: fills defaults, chooses chains, binds dimensions, infers types."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from ortdeploy.deployment.binding import (
    bind_all,
    fed_value,
    is_stacked,
    numpy_type,
    numpy_types,
    reads_as_wanted,
    source_type,
    with_fillers,
)
from ortdeploy.deployment.bound_inputs import StepProblem
from ortdeploy.deployment.column_patterns import expanded, fillers
from ortdeploy.deployment.declared_shapes import with_declared_shapes, with_overrides
from ortdeploy.deployment.expected_types import read_type
from ortdeploy.deployment.metadata import MetadataError, settings_of_metadata
from ortdeploy.deployment.op_names import NO_OPERATORS, KnownOperators
from ortdeploy.deployment.pipeline_types import type_pipeline
from ortdeploy.deployment.placement_prediction import Predict, predict_placement
from ortdeploy.deployment.resolved import (
    Deployment,
    ResolvedJob,
    ResolvedModel,
    ResolvedPipeline,
    ResolvedProvider,
    ResolvedSession,
    json_digest,
    missing_library,
)
from ortdeploy.deployment.step_types import NOT_OF_EACH_ROW, infer_postprocess, infer_prepare
from ortdeploy.deployment.unread_columns import with_column_problem
from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.facts import Facts
from ortdeploy.facts.host import DeviceFacts, RuntimeFacts
from ortdeploy.facts.models import FIRST, SECOND, ModelFacts, ValueFacts
from ortdeploy.graph.row_axes import derive_axes
from ortdeploy.manifest.job_order import in_order, readers_of
from ortdeploy.manifest.named_paths import option_path
from ortdeploy.manifest.option_paths import Full, files_to_open, with_full_paths, with_full_provider_paths
from ortdeploy.manifest.pipelines import PipelineSpec
from ortdeploy.manifest.read_spec import no_model
from ortdeploy.manifest.spec import JobSpec, ModelSpec, ProviderSpec, SessionSpec, Spec, StepSpec
from ortdeploy.plan.batching import Batching
from ortdeploy.providers.catalogue import find_provider, full_name
from ortdeploy.tensors.row_axes import RowAxes, rows_first, to_front
from ortdeploy.tensors.types import ROWS, USUAL, TensorType

DEFAULT_BATCH = 32
_MOST_SORTED = 8  # batches that are read at once, so that rows of one adapter fill runs


def resolve(
    spec: Spec, facts: Facts, operators: KnownOperators = NO_OPERATORS, predict: Predict = predict_placement
) -> Deployment:
    """Join what the user said with what is there; `operators` are those that op steps may be."""
    models = {model.name: _resolve_model(spec, model, facts, predict) for model in spec.models}
    jobs: dict[str, ResolvedJob] = {}
    for job in in_order(spec.jobs):
        upstream = jobs.get(job.input.job) if job.input.job else None
        if job.input.job and upstream is None:
            continue  # a rule refuses what keeps that job from being resolved
        if upstream is not None:
            from ortdeploy.deployment.upstream_columns import upstream_input  # noqa: PLC0415  only for such jobs

            facts = replace(facts, inputs={**facts.inputs, job.name: upstream_input(facts.inputs[job.name], upstream)})
        resolved = _resolve_any(spec, job, models, facts, operators)
        if resolved is not None:
            source = None if upstream is None else upstream.spec
            jobs[job.name] = replace(resolved, upstream=source, readers=_readers(job.name, spec))
    return Deployment(spec=spec, facts=facts, models=tuple(models.values()), jobs=tuple(jobs.values()))


def _readers(name: str, spec: Spec) -> dict[str, str]:
    """Return the jobs that read a job's rows, with the folders that they write into."""
    names = readers_of(name, spec.jobs)
    return {job.name: job.output.path for job in spec.jobs if job.name in names}


def _resolve_any(
    spec: Spec, job: JobSpec, models: Mapping[str, ResolvedModel], facts: Facts, operators: KnownOperators
) -> ResolvedJob | None:
    """Resolve a job of a model or of a pipeline; None if either is not declared."""
    pipeline = spec.pipeline(job.pipeline)
    if pipeline is None:
        model = models.get(job.model)
        return _resolve_job(spec, job, model, facts, operators) if model and not job.pipeline else None
    if any(name not in models for name in pipeline.models):
        return None
    resolved = _resolve_pipeline(pipeline, job, models, facts, operators)
    return _resolve_job(spec, job, _as_model(spec, resolved, facts), facts, operators, resolved)


def _resolve_pipeline(
    pipeline: PipelineSpec, job: JobSpec, models: Mapping[str, ResolvedModel], facts: Facts, operators: KnownOperators
) -> ResolvedPipeline:
    parts = tuple(models[name] for name in pipeline.models)
    if pipeline.preset is not None:
        return ResolvedPipeline(spec=pipeline, parts=parts, types=None, diffusion=facts.diffusion[pipeline.name])
    known = {part.spec.name: part.facts for part in parts}
    axes = {part.spec.name: part.axes for part in parts}
    arrives = partial(_arriving, job, facts.inputs[job.name], operators)
    types = type_pipeline(
        pipeline,
        known,
        axes,
        facts.adapters,
        arrives,
        given=job.input.values,
        files=facts.resources,
        operators=operators,
    )
    return ResolvedPipeline(spec=pipeline, parts=parts, types=types, diffusion=None)


def _arriving(
    job: JobSpec, source: InputFacts, operators: KnownOperators, name: str, wanted: str | None
) -> TensorType | None:
    """Return the type in which a column reaches an input of a pipeline, after its prepare steps; None: no such column.

    There is none either where the input is missing or cannot be read. Text is read so that it arrives in the type that
    steps want.
    """
    source = with_fillers(source, job)
    written = job.input.columns.get(name, (name,))
    if name not in source.columns and source.only_column and name not in job.input.columns:
        written = (source.only_column,)
    columns = expanded(written, source.columns)
    if any(column not in source.columns for column in columns):
        return None
    stacked = is_stacked(written, columns, source)
    tensor = source_type(source, columns, TensorType(), stacked=stacked)
    steps = job.prepare.get(name, ())
    if reads_as_wanted(source, tensor):
        tensor = replace(tensor, dtype=read_type(steps, wanted, operators) or USUAL)
    return infer_prepare(steps, tensor, operators).stages[-1]


def _as_model(of: Spec, pipeline: ResolvedPipeline, facts: Facts) -> ResolvedModel:
    """Return the model that a pipeline stands for; a part that cannot be used is a problem of the whole."""
    spec, parts = pipeline.spec, pipeline.parts
    if pipeline.diffusion is not None:
        problem = pipeline.diffusion.problem
        inputs, outputs = pipeline.diffusion.inputs, pipeline.diffusion.outputs
    else:
        problem = None
        outputs_by_name = pipeline.types.outputs if pipeline.types else {}
        inputs = tuple(pipeline.types.inputs.values()) if pipeline.types else ()
        outputs = tuple(ValueFacts(name=name, kind="tensor", tensor=tensor) for name, tensor in outputs_by_name.items())
    problem = problem or next((part.facts.problem for part in parts if part.facts.problem), None)
    made_of: list[Any] = [[part.spec.name, part.sha256] for part in parts]
    made_of += sorted([path, file.sha256] for path, file in facts.resources.items() if path in spec.definition)
    made_of += [pipeline.diffusion.sha256] if pipeline.diffusion else []
    first = parts[0] if parts else _of_no_model(of, pipeline)
    return ResolvedModel(
        spec=replace(first.spec, name=spec.name, sha256=None, inputs=(), outputs=(), checks=(), gate=False, at=spec.at),
        facts=ModelFacts(path="", sha256=json_digest(made_of), inputs=inputs, outputs=outputs, problem=problem),
        sessions=tuple(session for part in parts or (first,) for session in part.sessions),
        session=first.session,
        run=first.run,
    )


def _of_no_model(spec: Spec, pipeline: ResolvedPipeline) -> ResolvedModel:
    """Return the model of a pipeline that runs none."""
    model = no_model(pipeline.spec.name, pipeline.spec.at)
    (cpu,) = model.sessions
    chain = (ResolvedProvider(name=full_name("CPU"), options={}, device=None),)
    session = ResolvedSession(
        spec=cpu, written=spec.chain_of(cpu), chain=chain, unavailable=(), usable=True, prediction=None
    )
    return ResolvedModel(spec=model, facts=ModelFacts(path=""), sessions=(session,), session={}, run={})


def _resolve_model(spec: Spec, model: ModelSpec, facts: Facts, predict: Predict) -> ResolvedModel:
    sessions = tuple(_resolve_session(spec, model, session, facts, predict) for session in model.sessions)
    named = dict.fromkeys(files_to_open(model, (one.written for one in sessions)))
    files = (file for name in named if name in facts.option_files for file in facts.option_files[name].files)
    known, overruled = with_declared_shapes(facts.models[model.name], model.outputs)
    return ResolvedModel(
        spec=model,
        facts=with_overrides(known, model.session),
        axes=derive_axes(model, known),
        sessions=sessions,
        session=with_full_paths("session", model.session, partial(option_path, spec)),
        run=with_full_paths("run", model.run, partial(option_path, spec)),
        option_files=tuple(dict.fromkeys(files)),
        overruled={**known.overruled, **overruled},
    )


def _resolve_session(
    spec: Spec, model: ModelSpec, session: SessionSpec, facts: Facts, predict: Predict
) -> ResolvedSession:
    written = spec.chain_of(session)
    chain, unavailable = [], []
    for entry in written:
        resolved = _resolve_provider(entry, facts.runtime, partial(option_path, spec))
        if resolved is None:
            unavailable.append(entry)
        else:
            chain.append(resolved)
    usable = bool(chain) and (not unavailable or model.on_unavailable == "next")
    names = [provider.name for provider in chain]
    return ResolvedSession(
        spec=session,
        written=written,
        chain=tuple(chain),
        unavailable=tuple(unavailable),
        usable=usable,
        prediction=predict(facts.models[model.name], names, facts.runtime.kernels, facts.runtime.attributes),
    )


def _resolve_provider(entry: ProviderSpec, runtime: RuntimeFacts, full_path: Full) -> ResolvedProvider | None:
    """Take a built-in provider as it is, and one from a plugin package with the device that the entry chooses.

    Without a library that its options decide, a provider takes no node; one with a problem opens nothing.
    """
    name = full_name(entry.name)
    if name in runtime.plugin_problems or missing_library(entry, runtime) is not None:
        return None
    options = with_full_provider_paths(find_provider(name), entry.options, full_path)
    if name in runtime.available_providers and entry.library is None:
        return ResolvedProvider(name=name, options=options, device=None)
    device = choose_device(entry, [device for device in runtime.devices if device.provider == name])
    return ResolvedProvider(name=name, options=options, device=device) if device else None


def choose_device(entry: ProviderSpec, devices: Sequence[DeviceFacts]) -> DeviceFacts | None:
    """Return the first device that the selector names: by number, name, kind or vendor; without one, the first."""
    if entry.device is None:
        return devices[0] if devices else None
    if isinstance(entry.device, int):
        return next((device for device in devices if device.index == entry.device), None)
    wanted = entry.device.casefold()
    for attribute in ("name", "kind", "vendor"):
        for device in devices:
            if getattr(device, attribute).casefold() == wanted:
                return device
    return None


def _resolve_job(
    spec: Spec,
    job: JobSpec,
    model: ResolvedModel,
    facts: Facts,
    operators: KnownOperators,
    pipeline: ResolvedPipeline | None = None,
) -> ResolvedJob:
    source = facts.inputs[job.name]
    columns = with_fillers(source, job)
    names = dict.fromkeys((*job.adapters.names, *(pipeline.spec.adapters if pipeline else ())))
    adapters = tuple(found for name in names if (found := spec.adapter(name)))
    adapted = {one.name for adapter in adapters for one in facts.adapters[adapter.name].parameters}
    fed_otherwise = {*job.input.columns, *job.input.values, *columns.columns}
    if pipeline is None:
        adapted |= _matrices(spec, model, facts).difference(fed_otherwise)
    inputs = [value for value in model.facts.inputs if value.name not in adapted]  # those that columns feed
    axes = _axes(job, model, pipeline)
    targets = {value.name: rows_first(value.tensor, axes.of_input(value.name)) for value in inputs}
    fed = [value for value in inputs if value.name not in job.input.values]
    values = tuple(fed_value(job, value, targets[value.name], axes) for value in inputs if value not in fed)
    given = [one.value for one in values if one.axis is not None]
    by_row = [*(value for value in fed if not value.optional and axes.of_input(value.name) is not None), *given]
    batching = _batching(job, [targets[value.name] for value in by_row], pipeline)
    before = (facts.outputs[job.name].layout or {}).get("stacked", {})
    wanted = pipeline.types.wanted if pipeline and pipeline.types else numpy_types(targets)
    bindings = bind_all(job, model, columns, fed, targets, axes, wanted=wanted, before=before, operators=operators)
    outputs = {
        value.name: _output_type(value, axes.of_output(value.name), batched=batching.size is not None)
        for value in model.facts.outputs
        if axes.of_output(value.name) is not None or value.name not in axes.declared
    }
    models = {part.spec.name: part.facts for part in (pipeline.parts if pipeline else (model,))}
    steps, unnamed = _with_labels(job, facts, models)
    types = infer_postprocess(steps, outputs, operators)
    return ResolvedJob(
        spec=job,
        model=model,
        pipeline=pipeline,
        adapters=adapters,
        adapter_facts={adapter.name: facts.adapters[adapter.name] for adapter in adapters},
        input=with_column_problem(source, bindings, job.input.key),
        output=facts.outputs[job.name],
        axes=axes,
        bindings=bindings,
        missing=fillers(job.input.missing, dict.fromkeys(name for one in bindings for name in one.columns)),
        values=values,
        batching=batching,
        outputs=outputs,
        results=types.results,
        postprocess=steps,
        postprocess_problems=(*unnamed, *types.problems, *_unwritable(job, steps, types.whole)),
        postprocess_ops=tuple(types.ops),
        columns=job.output.columns or tuple(_usual_columns(types.results, types.whole, pipeline)),
    )


def _matrices(spec: Spec, model: ResolvedModel, facts: Facts) -> set[str]:
    """Return the inputs of a model that only adapters feed; where none does, a rule says it."""
    declared = [facts.adapters[one.name] for one in spec.adapters if one.model == model.spec.name]
    known = {one.name for adapter in declared for one in adapter.parameters}
    return {
        one.name
        for one in model.facts.inputs
        if not one.optional and (one.name in known or FIRST in one.name or SECOND in one.name)
    }


def _usual_columns(
    results: Mapping[str, TensorType], whole: frozenset[str], pipeline: ResolvedPipeline | None
) -> Iterator[str]:
    """Yield the columns of an output that names none."""
    left_out = whole.union(pipeline.spec.on_demand if pipeline else ())
    yield from (name for name in results if name not in left_out)


def _axes(job: JobSpec, model: ResolvedModel, pipeline: ResolvedPipeline | None) -> RowAxes:
    """Return the axes that count rows in what a job runs, for the rows that its runs have."""
    axes = _axes_of_pipeline(pipeline) if pipeline else model.axes
    return axes.of_one_row_runs if job.batch.is_none else axes.of_runs_of_one if job.batch.size == 1 else axes


def _unwritable(job: JobSpec, steps: Sequence[StepSpec], whole: frozenset[str]) -> Iterator[StepProblem]:
    """Yield the steps that make a column of a value that no row has."""
    for step in steps:
        for name in sorted(whole.intersection(step.results, job.output.columns)):
            reason = f"{name} {NOT_OF_EACH_ROW}, so it is no column. Leave it out of columns"
            yield StepProblem(step=step, reason=reason)


def _axes_of_pipeline(pipeline: ResolvedPipeline) -> RowAxes:
    """Return the row axes of a pipeline: the first one, but of inputs that models take whole."""
    return RowAxes(inputs=dict.fromkeys(pipeline.types.whole)) if pipeline.types else RowAxes()


def _batching(job: JobSpec, targets: Sequence[TensorType], pipeline: ResolvedPipeline | None) -> Batching:
    """Join the batch that the manifest asks for with the one that the graph fixes."""
    written, choice = job.batch.size, job.adapters
    fixed = None if job.batch.is_none else _fixed_batch(targets)
    size = written if isinstance(written, int) else fixed or DEFAULT_BATCH
    has_state = pipeline is not None and bool(pipeline.spec.state)
    return Batching(
        size=None if job.batch.is_none else size,
        auto=written == "auto" and fixed is None and not has_state,
        fixed=fixed,
        last=job.batch.last,
        batches_per_read=min(len(choice.names) + 1, _MOST_SORTED) if choice.column else 1,
        rows_per_part=job.output.rows_per_part,
    )


def _fixed_batch(targets: Sequence[TensorType]) -> int | None:
    """Return the number of rows that the graph takes, if it takes only one."""
    fixed = {target.shape[0] for target in targets if target.shape and isinstance(target.shape[0], int)}
    only = next(iter(fixed)) if len(fixed) == 1 else None
    return only if isinstance(only, int) and only > 0 else None


def _output_type(value: ValueFacts, axis: int | None, *, batched: bool) -> TensorType:
    """Return a model output's type with the rows in front."""
    dtype, shape = numpy_type(value.tensor.dtype), to_front(value.tensor.shape, axis)
    if shape is None:
        return TensorType(dtype)
    return TensorType(dtype, (ROWS, *(shape[1:] if batched else shape)))


def _with_labels(
    job: JobSpec, facts: Facts, models: Mapping[str, ModelFacts]
) -> tuple[tuple[StepSpec, ...], tuple[StepProblem, ...]]:
    """Return the postprocess steps with the labels of files and of metadata, and those whose model has none."""
    steps, problems = [], []
    for step in job.postprocess:
        read: Mapping[str, Any] = {}
        if step.name == "labels" and "from" in step.options:
            read = {"lines": list(facts.labels[step.options["from"]].lines)}
        elif step.name == "labels":
            try:
                read = settings_of_metadata(step.name, step.options, models, f'Job "{job.name}"')
            except MetadataError as error:
                problems.append(StepProblem(step=step, reason=error.detail.rstrip(".")))
        steps.append(replace(step, options={**step.options, **read}))
    return tuple(steps), tuple(problems)
