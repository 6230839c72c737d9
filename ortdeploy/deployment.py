"""Spec joined with facts: what each job would do here, with nothing left to interpret.

`resolve` decides nothing away: where something does not fit, the part that is known is kept, so that rules can say
everything that is wrong at once.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ortdeploy.facts import (
    TEXT_FORMATS,
    AdapterFacts,
    DeviceFacts,
    DiffusionFacts,
    Facts,
    InputFacts,
    ModelFacts,
    OutputFacts,
    RuntimeFacts,
    ValueFacts,
)
from ortdeploy.manifest.pipelines import PipelineSpec
from ortdeploy.manifest.spec import (
    AdapterSpec,
    JobSpec,
    ModelSpec,
    ProviderSpec,
    SessionSpec,
    Spec,
    StepSpec,
    TensorSpec,
)
from ortdeploy.prediction import Prediction, predict_placement
from ortdeploy.providers.catalogue import full_name
from ortdeploy.shares import allowed_count
from ortdeploy.tensors import ROWS, WIDER, Shape, TensorType
from ortdeploy.thread_budget import Layout, layouts, sleeping, usable_cores
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.transforms.protocol import InapplicableError
from ortdeploy.wiring import Wiring, wire

DEFAULT_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedProvider:
    """A provider that the session will ask for, by its full name; `device` when it comes from a plugin package."""

    name: str
    options: Mapping[str, Any]
    device: DeviceFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSession:
    """A session with the chain that it gets; `unavailable` are the providers of its chain that are not here.

    `prediction` is of the chain that it gets; None where kernel definitions do not decide, or are not known.
    """

    spec: SessionSpec
    written: tuple[ProviderSpec, ...]
    chain: tuple[ResolvedProvider, ...]
    unavailable: tuple[ProviderSpec, ...]
    usable: bool
    prediction: Prediction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model with its facts and the sessions that it may get, in order."""

    spec: ModelSpec
    facts: ModelFacts
    sessions: tuple[ResolvedSession, ...]

    @property
    def usable(self) -> tuple[ResolvedSession, ...]:
        """The sessions that this machine can honour; none of them where the model uses all, and not all can be."""
        usable = tuple(session for session in self.sessions if session.usable)
        needs_all = self.spec.use == "all" and self.spec.on_unavailable == "fail"
        return () if needs_all and len(usable) < len(self.sessions) else usable

    def laid_out(self, layout: Layout) -> "ResolvedModel":
        """Return the model with as many sessions and callers as a layout has; threads that wait do not spin."""
        sessions = tuple(
            replace(one, spec=replace(one.spec, count=layout.sessions, callers=layout.callers)) for one in self.sessions
        )
        if layout.sessions == 1 or layout.threads == 1:
            return replace(self, sessions=sessions)
        return replace(self, sessions=sessions, spec=replace(self.spec, session=sleeping(self.spec.session)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPipeline:
    """A pipeline with the models that it runs: its wires, or what is known of the folder of its preset."""

    spec: PipelineSpec
    parts: tuple[ResolvedModel, ...]
    wiring: Wiring | None
    diffusion: DiffusionFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProblem:
    """A step that cannot take what reaches it."""

    step: StepSpec
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """How one model input is fed: columns, steps, and the types from one end to the other.

    `target` is what the session takes, without the rows' dimension when the model has none. `columns` is empty when
    nothing feeds the input; `unknown` are columns that the source does not have.
    """

    value: ValueFacts
    declared: TensorSpec | None
    target: TensorType
    columns: tuple[str, ...]
    unknown: tuple[str, ...]
    stacked: bool
    source: TensorType
    steps: tuple[StepSpec, ...]
    stages: tuple[TensorType, ...]
    problem: StepProblem | None

    @property
    def final(self) -> TensorType:
        """What reaches the session, rows first."""
        return self.stages[-1]

    def shape(self, rows: int) -> tuple[int | None, ...]:
        """Return the sizes that a run of so many rows feeds, as far as they are known."""
        known = [size if isinstance(size, int) else None for size in self.target.shape or ()]
        given = [size if isinstance(size, int) else None for size in self.final.shape or ()]
        sizes = [have if have is not None else want for have, want in zip(known, given or known, strict=False)]
        return (rows, *sizes[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """A job with everything it rests on. `batch_size` 0: each row is one run.

    A pipeline stands for a `model` whose inputs and outputs are the pipeline's, and whose sessions are its models'.
    """

    spec: JobSpec
    model: ResolvedModel
    pipeline: ResolvedPipeline | None
    adapters: tuple[AdapterSpec, ...]
    adapter_facts: Mapping[str, AdapterFacts]
    input: InputFacts
    output: OutputFacts
    bindings: tuple[Binding, ...]
    batch_size: int
    fixed_batch: int | None
    outputs: Mapping[str, TensorType]
    results: Mapping[str, TensorType]
    postprocess: tuple[StepSpec, ...]
    postprocess_problems: tuple[StepProblem, ...]
    columns: tuple[str, ...]

    @property
    def identity(self) -> dict[str, str]:
        """What the results depend on, by the name that a message gives it.

        Two runs with the same identity give the same rows in the same files. The error budget and thread counts are
        not part of it: changing those lets a job go on where it stopped.
        """
        spec = self.spec
        output = [spec.output.format, self.columns, spec.input.key, spec.output.rows_per_part, spec.nan_policy]
        output += [spec.output.images] if spec.output.images else []
        of_pipeline = {"pipeline": _digest(self.pipeline.spec.definition)} if self.pipeline else {}
        return {
            "model": self.model.facts.sha256,
            **of_pipeline,
            "adapter": self._adapter_identity,
            "providers": _digest([[_written(entry) for entry in session.written] for session in self.model.sessions]),
            "columns": _digest(
                [*([b.value.name, b.columns, b.stacked] for b in self.bindings), *sorted(spec.input.missing.items())]
            ),
            "prepare": _digest([[b.value.name, [dict(step.options) for step in b.steps]] for b in self.bindings]),
            "batch": _digest(["auto" if spec.auto_batch else self.batch_size, spec.last]),
            "postprocess": _digest([dict(step.options) for step in self.postprocess]),
            "output": _digest(output),
        }

    @property
    def models(self) -> tuple[ResolvedModel, ...]:
        """The models that it opens: its own, or those of its pipeline."""
        return self.pipeline.parts if self.pipeline else (self.model,)

    @property
    def has_state(self) -> bool:
        """Whether a row hands something on to the next."""
        return self.pipeline is not None and bool(self.pipeline.spec.state)

    @property
    def is_finished(self) -> bool:
        """Whether a run has accounted for every row that there is."""
        return self.output.state == "finished" and not self.input.states

    @property
    def is_current(self) -> bool:
        """Whether what is committed was made from what the manifest and its files are now."""
        have = self.output.identity
        same = all(have.get(name, value) == value for name, value in self.identity.items())
        return same and not self.input.changed and self.output.problem is None

    @property
    def _adapter_identity(self) -> str:
        """The digest of the one adapter that all rows get, or of the choice with all their digests."""
        choice = self.spec.adapters
        digests = {adapter.name: self.adapter_facts[adapter.name].sha256 for adapter in self.adapters}
        if choice.column is None and len(digests) < 2:  # noqa: PLR2004  none, or one
            return next(iter(digests.values()), "")
        mapping = sorted(choice.mapping.items())
        return _digest([choice.always, choice.column, mapping, choice.otherwise, sorted(digests.items())])

    def allows(self, refused: int) -> bool | None:
        """Tell whether the error budget has room for refused rows; None: a share of a number that is not known."""
        limit = self.spec.max_failed
        if isinstance(limit, str) and self.input.rows is None:
            return None
        return refused <= allowed_count(limit, self.input.rows or 0)

    @property
    def needed(self) -> frozenset[str]:
        """Results that are written, or that a step reads."""
        return frozenset({*self.columns, *(step.reads for step in self.postprocess)})

    @property
    def has_varying_shapes(self) -> bool:
        """Whether the graph leaves a size open beside the number of rows, so that runs may differ in shape."""
        return any(not all(isinstance(size, int) for size in (b.target.shape or (None,))[1:]) for b in self.bindings)

    @property
    def readable(self) -> bool:
        """Whether the model and the input are there, so that what is between them can be judged."""
        return self.model.facts.problem is None and self.input.problem is None and not self.input.missing_package

    @property
    def comparable(self) -> bool:
        """Whether what reaches the model can be judged too: no steps stand under a name that is no input's."""
        inputs = {value.name for value in self.model.facts.inputs}
        return self.readable and inputs.issuperset(self.spec.prepare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One manifest on this machine. Jobs that name no model are missing; the spec's rules have refused them."""

    spec: Spec
    facts: Facts
    models: tuple[ResolvedModel, ...]
    jobs: tuple[ResolvedJob, ...]

    def layouts_of(self, model: ResolvedModel) -> tuple[Layout, ...]:
        """Return the ways to use threads of a model that says threads: auto, within the limits of all its jobs."""
        machine = self.facts.machine
        if not model.spec.auto_threads or machine is None:
            return ()
        limits = (job.spec.limits.threads for job in self.jobs if model in job.models)
        return layouts(min([usable_cores(machine), *(limit for limit in limits if limit is not None)]))


def resolve(spec: Spec, facts: Facts) -> Deployment:
    """Join what the user said with what is there."""
    models = {model.name: _resolve_model(spec, model, facts) for model in spec.models}
    jobs = tuple(resolved for job in spec.jobs if (resolved := _resolve_any(spec, job, models, facts)))
    return Deployment(spec=spec, facts=facts, models=tuple(models.values()), jobs=jobs)


def _resolve_any(spec: Spec, job: JobSpec, models: Mapping[str, ResolvedModel], facts: Facts) -> ResolvedJob | None:
    """Resolve a job of a model or of a pipeline; None where either is not declared."""
    pipeline = spec.pipeline(job.pipeline)
    if pipeline is None:
        model = models.get(job.model)
        return _resolve_job(spec, job, model, facts) if model and not job.pipeline else None
    if any(name not in models for name in pipeline.models):
        return None
    resolved = _resolve_pipeline(pipeline, job, models, facts)
    return _resolve_job(spec, job, _as_model(resolved, facts), facts, resolved)


def _resolve_pipeline(
    pipeline: PipelineSpec, job: JobSpec, models: Mapping[str, ResolvedModel], facts: Facts
) -> ResolvedPipeline:
    parts = tuple(models[name] for name in pipeline.models)
    if pipeline.preset is not None:
        return ResolvedPipeline(spec=pipeline, parts=parts, wiring=None, diffusion=facts.diffusion[pipeline.name])
    known = {part.spec.name: part.facts for part in parts}
    wiring = wire(pipeline, known, facts.adapters, partial(_arriving, job, facts.inputs[job.name]))
    return ResolvedPipeline(spec=pipeline, parts=parts, wiring=wiring, diffusion=None)


def _arriving(job: JobSpec, source: InputFacts, name: str) -> TensorType | None:
    """Return the type in which a column reaches an input of a pipeline, after its prepare steps; None: no such column.

    There is none either where the input is missing or cannot be read.
    """
    column = job.input.columns.get(name, (name,))[0]
    if column not in source.columns and len(source.columns) == 1 and name not in job.input.columns:
        column = next(iter(source.columns))
    tensor = source.columns.get(column)
    if tensor is None:
        return None
    if source.format in TEXT_FORMATS and tensor.dtype is None:
        tensor = replace(tensor, dtype="float32")
    stages, _ = _infer_prepare(job.prepare.get(name, ()), tensor)
    return stages[-1]


def _as_model(pipeline: ResolvedPipeline, facts: Facts) -> ResolvedModel:
    """Return the model that a pipeline stands for; a part that cannot be used is a problem of the whole."""
    spec, parts = pipeline.spec, pipeline.parts
    if pipeline.diffusion is not None:
        problem = pipeline.diffusion.problem
        inputs, outputs = pipeline.diffusion.inputs, pipeline.diffusion.outputs
    else:
        problem = None
        wired = pipeline.wiring.outputs if pipeline.wiring else {}
        inputs = tuple(pipeline.wiring.inputs.values()) if pipeline.wiring else ()
        outputs = tuple(ValueFacts(name=name, kind="tensor", tensor=tensor) for name, tensor in wired.items())
    problem = problem or next((part.facts.problem for part in parts if part.facts.problem), None)
    made_of: list[Any] = [[part.spec.name, part.facts.sha256] for part in parts]
    made_of += sorted([path, file.sha256] for path, file in facts.resources.items() if path in spec.definition)
    made_of += [pipeline.diffusion.sha256] if pipeline.diffusion else []
    first = parts[0]
    return ResolvedModel(
        spec=replace(first.spec, name=spec.name, sha256=None, inputs=(), outputs=(), checks=(), gate=False, at=spec.at),
        facts=ModelFacts(path="", sha256=_digest(made_of), inputs=inputs, outputs=outputs, problem=problem),
        sessions=tuple(session for part in parts for session in part.sessions),
    )


def _resolve_model(spec: Spec, model: ModelSpec, facts: Facts) -> ResolvedModel:
    sessions = tuple(_resolve_session(spec, model, session, facts) for session in model.sessions)
    return ResolvedModel(spec=model, facts=facts.models[model.name], sessions=sessions)


def _resolve_session(spec: Spec, model: ModelSpec, session: SessionSpec, facts: Facts) -> ResolvedSession:
    written = spec.chain_of(session)
    chain, unavailable = [], []
    for entry in written:
        resolved = _resolve_provider(entry, facts.runtime)
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
        prediction=predict_placement(facts.models[model.name], names, facts.runtime.kernels, facts.runtime.attributes),
    )


def _resolve_provider(entry: ProviderSpec, runtime: RuntimeFacts) -> ResolvedProvider | None:
    """Take a built-in provider as it is, and one from a plugin package with the device that the entry chooses."""
    name = full_name(entry.name)
    if name in runtime.available_providers and entry.library is None:
        return ResolvedProvider(name=name, options=entry.options, device=None)
    device = choose_device(entry, [device for device in runtime.devices if device.provider == name])
    return ResolvedProvider(name=name, options=entry.options, device=device) if device else None


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
    spec: Spec, job: JobSpec, model: ResolvedModel, facts: Facts, pipeline: ResolvedPipeline | None = None
) -> ResolvedJob:
    source = facts.inputs[job.name]
    names = dict.fromkeys((*job.adapters.names, *(pipeline.spec.adapters if pipeline else ())))
    adapters = tuple(found for name in names if (found := spec.adapter(name)))
    adapted = {one.name for adapter in adapters for one in facts.adapters[adapter.name].parameters}
    inputs = [value for value in model.facts.inputs if value.name not in adapted]  # those that columns feed
    targets = {value.name: _target(value, model.spec) for value in inputs}
    batch_size, fixed = _batch(job, [targets[value.name] for value in inputs if not value.optional])
    bindings = _bind_all(job, model, source, inputs, targets)
    outputs = {value.name: _output_type(value, batched=batch_size > 0) for value in model.facts.outputs}
    steps = tuple(_with_labels(step, facts) for step in job.postprocess)
    results, problems = _infer_postprocess(steps, outputs)
    return ResolvedJob(
        spec=job,
        model=model,
        pipeline=pipeline,
        adapters=adapters,
        adapter_facts={adapter.name: facts.adapters[adapter.name] for adapter in adapters},
        input=source,
        output=facts.outputs[job.name],
        bindings=bindings,
        batch_size=batch_size,
        fixed_batch=fixed,
        outputs=outputs,
        results=results,
        postprocess=steps,
        postprocess_problems=problems,
        columns=job.output.columns or tuple(results),
    )


def _target(value: ValueFacts, model: ModelSpec) -> TensorType:
    """Return the graph's type with overridden dimensions and the sizes that the manifest adds to symbols."""
    overrides = model.session.get("free_dimension_overrides", {})
    shape = value.tensor.shape
    if shape is not None:
        shape = tuple(overrides.get(size, size) if isinstance(size, str) else size for size in shape)
    return value.tensor.with_shape(shape)


def _batch(job: JobSpec, targets: Sequence[TensorType]) -> tuple[int, int | None]:
    """Return rows per run (0: one row is one run) and the batch that the graph fixes, if it does."""
    if job.batch_size == 0:
        return 0, None
    fixed = {target.shape[0] for target in targets if target.shape and isinstance(target.shape[0], int)}
    only = next(iter(fixed)) if len(fixed) == 1 else None
    size = only if isinstance(only, int) and only > 0 else None
    return job.batch_size or size or DEFAULT_BATCH, size


def _bind_all(
    job: JobSpec,
    model: ResolvedModel,
    source: InputFacts,
    inputs: Sequence[ValueFacts],
    targets: Mapping[str, TensorType],
) -> tuple[Binding, ...]:
    """Bind every input that must be fed, and the optional ones that the manifest feeds."""
    unnamed = [v.name for v in inputs if not v.optional and v.name not in job.input.columns]
    only_column = next(iter(source.columns)) if len(source.columns) == 1 and len(unnamed) == 1 else None
    bindings = []
    for value in inputs:
        columns = job.input.columns.get(value.name, ())
        if not columns and value.name in source.columns:
            columns = (value.name,)
        if not columns and only_column and value.name == unnamed[0]:
            columns = (only_column,)
        if columns or not value.optional:
            bindings.append(_bind(job, model, source, value, targets[value.name], columns))
    return tuple(bindings)


def _bind(
    job: JobSpec,
    model: ResolvedModel,
    source: InputFacts,
    value: ValueFacts,
    target: TensorType,
    columns: tuple[str, ...],
) -> Binding:
    stacked = len(columns) > 1 or _needs_vector(source, columns, target)
    start = _source_type(source, columns, target, stacked=stacked)
    steps = job.prepare.get(value.name, ())
    if source.format in TEXT_FORMATS and target.dtype in WIDER:  # text is read as the type that holds each value of it
        steps = (*steps, StepSpec(name="cast", options={"cast": target.dtype}, at=(*job.at, "prepare", value.name)))
    stages, problem = _infer_prepare(steps, start)
    return Binding(
        value=value,
        declared=next((tensor for tensor in model.spec.inputs if tensor.name == value.name), None),
        target=target,
        columns=columns,
        unknown=tuple(name for name in columns if name not in source.columns),
        stacked=stacked,
        source=start,
        steps=steps,
        stages=stages,
        problem=problem,
    )


def _needs_vector(source: InputFacts, columns: tuple[str, ...], target: TensorType) -> bool:
    """Tell whether a column of single values feeds [rows, 1]: there is only one way to read it so."""
    shapes = [source.columns[name].shape for name in columns if name in source.columns]
    return shapes == [(ROWS,)] and target.shape is not None and len(target.shape) == 2 and target.shape[1] == 1  # noqa: PLR2004


def _source_type(source: InputFacts, columns: tuple[str, ...], target: TensorType, *, stacked: bool) -> TensorType:
    known = [source.columns[name] for name in columns if name in source.columns]
    if not known:
        return TensorType()
    first = known[0]
    dtype = _numpy_type(target.dtype) if source.format in TEXT_FORMATS else first.dtype
    if not stacked:
        return replace(first, dtype=dtype)
    shape: Shape | None = (ROWS, len(columns), *first.shape[1:]) if first.shape else None
    return TensorType(dtype, shape)


def _numpy_type(dtype: str | None) -> str | None:
    """Return the element type itself, or the one that numpy has for its values."""
    return WIDER.get(dtype, dtype) if dtype else dtype


def _infer_prepare(steps: Sequence[StepSpec], tensor: TensorType) -> tuple[tuple[TensorType, ...], StepProblem | None]:
    """Return the type before the first step and after each, up to the first that cannot go on."""
    stages = [tensor]
    for step in steps:
        try:
            (tensor,) = PREPARE[step.name].infer(step.options, tensor)
        except InapplicableError as error:
            return (*stages, TensorType()), StepProblem(step=step, reason=str(error))
        stages.append(tensor)
    return tuple(stages), None


def _output_type(value: ValueFacts, *, batched: bool) -> TensorType:
    """Return a model output's type with the rows in front."""
    dtype, shape = _numpy_type(value.tensor.dtype), value.tensor.shape
    if shape is None:
        return TensorType(dtype)
    return TensorType(dtype, (ROWS, *(shape[1:] if batched else shape)))


def _with_labels(step: StepSpec, facts: Facts) -> StepSpec:
    if step.name != "labels":
        return step
    lines = facts.labels[step.options["from"]].lines
    return replace(step, options={**step.options, "lines": list(lines)})


def _infer_postprocess(
    steps: Sequence[StepSpec], outputs: Mapping[str, TensorType]
) -> tuple[dict[str, TensorType], tuple[StepProblem, ...]]:
    results, problems = dict(outputs), []
    for step in steps:
        tensor = results.get(step.reads, TensorType())
        try:
            types = POSTPROCESS[step.name].infer(step.options, tensor)
        except InapplicableError as error:
            problems.append(StepProblem(step=step, reason=str(error)))
            types = tuple(TensorType() for _ in step.results)
        results.update(zip(step.results, types, strict=True))
    return results, tuple(problems)


def _written(entry: ProviderSpec) -> list[Any]:
    return [full_name(entry.name), dict(entry.options), entry.device, entry.library]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
