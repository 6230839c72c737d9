"""The plan: what would run, as data with a format version, and the facts it rests on.

`apply` does what the steps say and nothing else. A saved plan is refused when one of its facts has moved.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ortdeploy.deployment import Binding, Deployment, ResolvedJob, ResolvedModel, ResolvedProvider
from ortdeploy.facts import AdapterFacts, FileState, MemoryForecast, ValueFacts
from ortdeploy.manifest.option_paths import with_full_paths, with_full_provider_paths
from ortdeploy.manifest.spec import AdapterChoice, AdapterSpec, CheckSpec, StepSpec
from ortdeploy.planned_pipeline import PlannedPipeline, plan_pipeline
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.providers.options import serialise
from ortdeploy.tensors import FLOATING, Shape, TensorType
from ortdeploy.thread_budget import provider_with_threads, threads_of_session, with_threads, without_spinning

FORMAT_VERSION = 3

_MOST_SORTED = 8  # batches that are read at once, so that rows of one adapter fill runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that the plan rests on: its kind, which one, and a value that changes when it does."""

    kind: str
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProvider:
    """One provider of a session's chain, by its full name; `device` when it comes from a plugin package.

    `options` are the text that the provider parses.
    """

    name: str
    options: Mapping[str, str]
    device: "PlannedDevice | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """A device of a plugin package's provider, and the library that offers it."""

    index: int
    kind: str
    vendor: str
    name: str
    library: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSession:
    """A session by its name, with the chain that it is given, how many of it are opened, and the callers of each.

    `predicted` are nodes by provider before optimization, where kernel definitions decide.
    """

    name: str
    providers: tuple[PlannedProvider, ...]
    count: int = 1
    predicted: Mapping[str, int] | None = None
    callers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """One way to use threads for a model: the sessions that it opens, with which session options."""

    name: str
    candidates: tuple[PlannedSession, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Open the sessions of a model: the first of `candidates` that can be opened as the plan says, or all of them.

    `shared_arena` are the settings of the process's arena where they use it; `trim`: freed memory goes back to the
    system. `layouts` are those to measure: the best of them takes the place of `candidates` and `options`.
    `extensions`: the model has operators of onnxruntime-extensions.
    """

    session: str
    model: str
    path: str
    sha256: str
    candidates: tuple[PlannedSession, ...]
    use: str
    on_unavailable: str
    cpu_fallback: str | int
    probe: tuple[float, float] | None
    options: Mapping[str, Any]
    run_options: Mapping[str, Any]
    cache: bool
    shared_arena: Mapping[str, int] | None = None
    trim: bool = False
    layouts: tuple[PlannedLayout, ...] = ()
    extensions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdapter:
    """Load an adapter file for a session; `parameters` are the model's inputs that it brings."""

    adapter: str
    session: str
    path: str
    sha256: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAdapters:
    """The adapters of a job's rows: `always` these, or by the text in a `column`.

    `otherwise` is for a text without an entry in `mapping`: none, fail or an adapter's name. `names` are all adapters
    that a row may get.
    """

    names: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    column: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = "fail"

    def of(self, text: str) -> tuple[str, ...] | None:
        """Return the adapters of a row with this text in the column; None where it must fail."""
        name = self.mapping.get(text, self.otherwise)
        return None if name == "fail" else () if name == "none" else (name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A prepare or postprocess step with the type it was planned for; `results` are a postprocess step's columns."""

    name: str
    options: Mapping[str, Any]
    results: tuple[str, ...]
    dtype: str | None
    shape: Shape | None
    layout: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput:
    """One model input: the columns it is fed from, the steps, and what must arrive at the session.

    `shape` is that of a whole run. `read_dtype` is the element type that text formats are read as.
    """

    name: str
    columns: tuple[str, ...]
    stacked: bool
    read_dtype: str | None
    steps: tuple[PlannedStep, ...]
    dtype: str
    shape: Shape | None
    limits: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """Run one job.

    `batch_size` 0: each row is one run; `auto_batch`: it is where the search for a better one begins; `pad_to` fills
    short batches; `max_failed` is a number of rows or a share; `missing` says by column what an empty value stands for;
    `read_size` rows are read at once, several batches where rows are sorted by adapter. `files` are those to read;
    `first_row` rows came from others, in runs that are finished. `row_shapes` are those of `columns`. `replaces` is the
    run whose result makes room for this one's. `retry`: its failed rows are run, and nothing else. `progress_timeout`
    is in seconds, limits are in bytes. `memory` is what the job is predicted to take; `trim` as of its model.
    `upload` is a folder on an object store that gets what is written.
    """

    job: str
    session: str
    model: str
    adapters: PlannedAdapters
    format: str
    patterns: tuple[str, ...]
    files: tuple[FileState, ...]
    first_row: int
    row_type: TensorType | None
    inputs: tuple[PlannedInput, ...]
    missing: Mapping[str, Any]
    key: tuple[str, ...]
    rows: int | None
    batch_size: int
    auto_batch: bool
    read_size: int
    last: str
    pad_to: int | None
    fetch: tuple[str, ...]
    check_finite: tuple[str, ...]
    on_nan: str
    postprocess: tuple[PlannedStep, ...]
    output: str
    output_format: str
    columns: tuple[str, ...]
    row_shapes: tuple[tuple[int | None, ...] | None, ...]
    rows_per_part: int
    max_failed: int | str
    max_consecutive: int | None
    retries: int
    progress_timeout: float | None
    identity: Mapping[str, str]
    committed_rows: int
    replaces: str | None
    reports: tuple[str, ...] = ()
    retry: bool = False
    memory_limit: int | None = None
    disk_limit: int | None = None
    memory: MemoryForecast | None = None
    trim: bool = False
    pipeline: PlannedPipeline | None = None
    upload: str | None = None
    images: tuple[str, ...] = ()

    @property
    def shown_output(self) -> str:
        """Where results go, as the user knows it."""
        return self.upload or self.output

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """Every adapter that a row may get, those of its pipeline's steps too."""
        return (*self.adapters.names, *(self.pipeline.adapters if self.pipeline else ()))

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions that it needs: its model's, or those of its pipeline's models."""
        return self.pipeline.sessions if self.pipeline else (self.session,)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenValue:
    """An input or output of a model as golden files are read: its kind, and whether it has a default."""

    name: str
    kind: str
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpInput:
    """An input that nobody gave values for: its type, and what they may be."""

    name: str
    dtype: str
    shape: Shape | None
    limits: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCheck:
    """One session of a model and the golden folders, below `root`, to run on it; with an adapter, if there is one.

    Tolerances are relative and absolute, by output; those of "" are for all others. `record`: outputs are written
    instead of compared. `leak_runs`: instead of that, so many runs are watched for a leak, on the golden inputs or,
    without folders, on `made_up` ones.
    """

    opening: OpenSession
    root: str
    folders: tuple[str, ...]
    tolerances: tuple[Mapping[str, tuple[float, float]], ...]
    inputs: tuple[GoldenValue, ...]
    outputs: tuple[GoldenValue, ...]
    adapter: LoadAdapter | None = None
    record: bool = False
    leak_runs: int = 0
    made_up: tuple[MadeUpInput, ...] = ()


Step = OpenSession | LoadAdapter | RunJob


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """A job whose result is there already, made from the same things."""

    job: str
    output: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would run for one manifest in `folder`; `profile`, `sets`, `overlays` and `roots` are the command line's.

    `gates` are golden checks that must pass before any of the steps.
    """

    deployment: str
    manifest: str
    folder: str
    profile: str | None
    sets: tuple[str, ...]
    overlays: tuple[str, ...]
    roots: tuple[str, ...]
    facts: tuple[Fact, ...]
    gates: tuple[PlannedCheck, ...]
    steps: tuple[Step, ...]
    finished: tuple[FinishedJob, ...]


def make_plan(deployment: Deployment, only_job: str | None = None, *, retry: bool = False) -> Plan:
    """Write down the steps for a deployment to which no rule objects; to `retry` is to run failed rows alone."""
    spec = deployment.spec
    jobs = [job for job in deployment.jobs if only_job in {None, job.spec.name}]
    finished = tuple(_finished(job) for job in jobs if job.is_finished and not retry)
    to_run = [job for job in jobs if retry or not job.is_finished]
    return Plan(
        deployment=spec.name,
        manifest=spec.path,
        folder=spec.folder,
        profile=spec.profile,
        sets=spec.sets,
        overlays=tuple(str(Path(overlay).absolute()) for overlay in spec.overlays),
        roots=spec.roots,
        facts=plan_facts(deployment),
        gates=make_checks(deployment, {one.spec.name for job in to_run for one in job.models if one.spec.gate}),
        steps=tuple(_steps(to_run, deployment, retry=retry)),
        finished=finished,
    )


def make_checks(deployment: Deployment, models: Collection[str]) -> tuple[PlannedCheck, ...]:
    """Write down the golden checks of some models, and of their adapters, on each of the models' sessions."""
    return tuple(
        check for model in deployment.models if model.spec.name in models for check in _checks(model, deployment)
    )


def _checks(model: ResolvedModel, deployment: Deployment) -> Iterator[PlannedCheck]:
    """Yield the checks of a model and then of its adapters, one for each session that the model may get."""
    yield from _checks_of(model, None, model.spec.checks, deployment.spec.folder)
    for adapter in deployment.spec.adapters:
        if adapter.model == model.spec.name:
            loading = _load_adapter(adapter, deployment.facts.adapters[adapter.name])
            yield from _checks_of(model, loading, adapter.checks, deployment.spec.folder)


def _checks_of(
    model: ResolvedModel, adapter: LoadAdapter | None, golden: Sequence[CheckSpec], folder: str
) -> Iterator[PlannedCheck]:
    opening = _open_session(model, folder)
    for candidate in opening.candidates if golden else ():
        yield PlannedCheck(
            opening=replace(opening, candidates=(replace(candidate, count=1, callers=1),), use="first", probe=None),
            root=folder,
            folders=tuple(one.path for one in golden),
            tolerances=tuple({**one.outputs, "": one.tolerance} for one in golden),
            inputs=_golden_values(model.facts.inputs),
            outputs=_golden_values(model.facts.outputs),
            adapter=adapter,
        )


def make_leak_checks(deployment: Deployment, models: Collection[str], runs: int) -> tuple[PlannedCheck, ...]:
    """Write down a search for leaks on each session of some models."""
    return tuple(
        PlannedCheck(
            opening=replace(opening, candidates=(replace(candidate, count=1, callers=1),), use="first", probe=None),
            root=deployment.spec.folder,
            folders=tuple(one.path for one in model.spec.checks),
            tolerances=(),
            inputs=_golden_values(model.facts.inputs),
            outputs=_golden_values(model.facts.outputs),
            leak_runs=runs,
            made_up=tuple(_made_up(model)),
        )
        for model in deployment.models
        if model.spec.name in models
        for opening in [_open_session(model, deployment.spec.folder)]
        for candidate in opening.candidates
    )


def _made_up(model: ResolvedModel) -> Iterator[MadeUpInput]:
    """Yield the inputs that must be fed, as the graph and the manifest have them."""
    declared = {tensor.name: tensor for tensor in model.spec.inputs}
    for value in (value for value in model.facts.inputs if not value.optional and value.kind == "tensor"):
        said = declared.get(value.name)
        shape = value.tensor.shape
        if shape is not None and said is not None and said.tensor.shape is not None:
            shape = tuple(w if isinstance(w, int) else h for h, w in zip(shape, said.tensor.shape, strict=False))
        limits = value.limits or (said.limits if said else None)
        kept = (float(limits[0]), float(limits[1])) if limits else None
        yield MadeUpInput(name=value.name, dtype=value.tensor.dtype or "float32", shape=shape, limits=kept)


def _golden_values(values: Sequence[ValueFacts]) -> tuple[GoldenValue, ...]:
    return tuple(GoldenValue(name=one.name, kind=one.kind, optional=one.optional) for one in values)


def recording(checks: Sequence[PlannedCheck]) -> tuple[PlannedCheck, ...]:
    """Return checks that write the CPU provider's outputs: one for each model, whatever sessions it has."""
    of_models: dict[tuple[str, str, str | None], PlannedCheck] = {}
    for check in checks:
        adapter = check.adapter.adapter if check.adapter else None
        of_models.setdefault((check.root, check.opening.model, adapter), check)
    return tuple(replace(check, opening=on_cpu(check.opening), record=True) for check in of_models.values())


_CPU_OPTIONS = (
    "free_dimension_overrides", "execution_mode", "graph_optimization_level", "intra_op_num_threads",
    "inter_op_num_threads", "log_severity_level",
)  # fmt: skip


def on_cpu(step: OpenSession) -> OpenSession:
    """Return a step that opens the model on the CPU provider alone, as the reference for what others compute.

    It keeps what the model needs to run at all, and leaves out what speaks to other providers or writes files. Weights
    are not packed for a session that runs once: that takes longer than it saves, and as much memory again.
    """
    cpu = PlannedSession(name="cpu", providers=(PlannedProvider(name=CPU, options={}),))
    kept = {key: value for key, value in step.options.items() if key in _CPU_OPTIONS}
    options = {**kept, "config": {"session.disable_prepacking": True}}
    return replace(step, candidates=(cpu,), options=options, run_options={}, cache=False)


def keep_jobs(plan: Plan, jobs: Collection[str]) -> Plan:
    """Return the part of a plan that some of its jobs need."""
    run = [step for step in plan.steps if isinstance(step, RunJob) and step.job in jobs]
    sessions = {session for step in run for session in step.sessions}
    adapters = {(session, name) for step in run for session in step.sessions for name in step.adapter_names}
    steps = tuple(
        step
        for step in plan.steps
        if step in run
        or (isinstance(step, OpenSession) and step.session in sessions)
        or (isinstance(step, LoadAdapter) and (step.session, step.adapter) in adapters)
    )
    gates = tuple(gate for gate in plan.gates if gate.opening.session in sessions)
    return replace(plan, steps=steps, gates=gates, finished=tuple(done for done in plan.finished if done.job in jobs))


def job_names(plan: Plan) -> tuple[str, ...]:
    """Return the jobs of a plan, those that would run and those that are finished."""
    return (*(step.job for step in plan.steps if isinstance(step, RunJob)), *(done.job for done in plan.finished))


def plan_facts(deployment: Deployment) -> tuple[Fact, ...]:
    """Return what a plan for this deployment rests on."""
    runtime = deployment.facts.runtime
    sessions = [session for model in deployment.models for session in model.sessions]
    asked = {provider.name for session in sessions for provider in session.chain}
    return (
        Fact(kind="manifest", name=Path(deployment.spec.path).name, value=deployment.spec.sha256),
        Fact(kind="ONNX Runtime version", name="onnxruntime", value=runtime.version),
        Fact(kind="providers", name="onnxruntime", value=", ".join(runtime.available_providers)),
        *(
            Fact(
                kind="device",
                name=f"{device.provider} {device.index}",
                value=f"{device.kind} {device.vendor} {device.name}",
            )
            for device in runtime.devices
            if device.provider in asked
        ),
        *(Fact(kind="model", name=m.spec.path, value=m.facts.sha256) for m in deployment.models),
        *(
            Fact(kind="adapter", name=adapter.path, value=deployment.facts.adapters[adapter.name].sha256)
            for adapter in deployment.spec.adapters
        ),
        *(Fact(kind="labels", name=path, value=file.sha256) for path, file in deployment.facts.labels.items()),
        *(Fact(kind="file", name=path, value=file.sha256) for path, file in deployment.facts.resources.items()),
        *(Fact(kind="folder", name=name, value=one.sha256) for name, one in deployment.facts.diffusion.items()),
        *(
            Fact(kind="inputs", name=f"job {job.spec.name}: {', '.join(job.spec.input.paths)}", value=job.input.digest)
            for job in deployment.jobs
        ),
    )


def moved_facts(planned: Sequence[Fact], now: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the planned facts that are no longer so."""
    present = {(fact.kind, fact.name): fact.value for fact in now}
    return tuple(fact for fact in planned if present.get((fact.kind, fact.name)) != fact.value)


def _finished(job: ResolvedJob) -> FinishedJob:
    return FinishedJob(job=job.spec.name, output=job.spec.output.shown, rows=job.output.rows)


def _steps(jobs: Sequence[ResolvedJob], deployment: Deployment, *, retry: bool) -> Iterator[Step]:
    opened: set[str] = set()
    spec = deployment.spec
    for job in jobs:
        for model in (model for model in job.models if model.spec.name not in opened):
            limits = [one.spec.limits.threads for one in jobs if model in one.models]
            varying = any(one.has_varying_shapes for one in jobs if model in one.models)
            opening = _open_session(model, spec.folder, threads_of_session(model.spec, limits), varying=varying)
            shared_arena = (spec.shared_arena or {}) if model.spec.memory.shared_arena else None
            layouts = tuple(_layouts(model, deployment, jobs, varying=varying))
            yield replace(opening, shared_arena=shared_arena, layouts=layouts)
            opened.add(model.spec.name)
        for adapter in (adapter for adapter in job.adapters if adapter.name not in opened):
            yield _load_adapter(adapter, job.adapter_facts[adapter.name])
            opened.add(adapter.name)
        pipeline = plan_pipeline(job.pipeline, spec.folder) if job.pipeline else None
        memory = deployment.facts.memory.get(job.spec.name)
        yield replace(planned_job(job), retry=retry, memory=memory, pipeline=pipeline)


def _layouts(
    model: ResolvedModel, deployment: Deployment, jobs: Sequence[ResolvedJob], *, varying: bool
) -> Iterator[PlannedLayout]:
    """Yield the ways to use threads that are to be measured, as far as they fit the memory of every job."""
    for layout in deployment.layouts_of(model):
        forecasts = (deployment.facts.memory.get(job.spec.name) for job in jobs if model in job.models)
        if all(forecast is None or layout.name in forecast.layouts for forecast in forecasts):
            opening = _open_session(model.laid_out(layout), deployment.spec.folder, layout.threads, varying=varying)
            yield PlannedLayout(name=layout.name, candidates=opening.candidates, options=opening.options)


def _load_adapter(adapter: AdapterSpec, facts: AdapterFacts) -> LoadAdapter:
    return LoadAdapter(
        adapter=adapter.name,
        session=adapter.model,
        path=facts.path,
        sha256=facts.sha256,
        parameters=tuple(one.name for one in facts.parameters),
    )


def _open_session(
    model: ResolvedModel, folder: str, threads: int | None = None, *, varying: bool = False
) -> OpenSession:
    """Write down a model's sessions, each with so many threads; `varying`: its runs may differ in shape."""
    session = with_threads(model.spec.session, threads)
    session = without_spinning(session, (one.chain[0].name for one in model.usable if one.chain))
    if varying and model.spec.memory.pattern_by_shape:
        session = {"enable_mem_pattern": False, **session}
    return OpenSession(
        session=model.spec.name,
        model=model.spec.name,
        path=model.facts.path,
        sha256=model.facts.sha256,
        candidates=tuple(
            PlannedSession(
                name=session.spec.name,
                providers=tuple(_planned_provider(provider, folder, threads) for provider in session.chain),
                count=session.spec.count,
                callers=session.spec.callers,
                predicted=session.prediction.nodes if session.prediction else None,
            )
            for session in model.usable
        ),
        use=model.spec.use,
        on_unavailable=model.spec.on_unavailable,
        cpu_fallback=model.spec.cpu_fallback,
        probe=model.spec.probe,
        options=with_full_paths("session", session, folder),
        run_options=with_full_paths("run", model.spec.run, folder),
        cache=model.spec.cache,
        trim=model.spec.memory.trim,
        extensions=model.facts.uses_extensions,
    )


def _planned_provider(provider: ResolvedProvider, folder: str, threads: int | None) -> PlannedProvider:
    device, known = provider.device, find_provider(provider.name)
    written = provider_with_threads(provider.name, provider.options, device.kind if device else "", threads)
    options = serialise(known, with_full_provider_paths(known, written, folder))
    if device is None:
        return PlannedProvider(name=provider.name, options=options)
    planned = PlannedDevice(
        index=device.index, kind=device.kind, vendor=device.vendor, name=device.name, library=device.library
    )
    return PlannedProvider(name=provider.name, options=options, device=planned)


def planned_job(job: ResolvedJob) -> RunJob:
    """Write down one job to which no rule objects."""
    spec = job.spec
    choice = spec.adapters
    read_size = max(job.batch_size, 1) * (min(len(choice.names) + 1, _MOST_SORTED) if choice.column else 1)
    fetch = tuple(name for name in job.outputs if name in job.needed)
    return RunJob(
        job=spec.name,
        session=job.model.spec.name,
        model=job.model.spec.name,
        adapters=_planned_adapters(choice),
        format=job.input.format or "",
        patterns=spec.input.paths,
        files=job.input.states,
        first_row=job.input.first_row,
        row_type=job.input.row_type,
        inputs=tuple(_planned_input(binding, job) for binding in job.bindings),
        missing=spec.input.missing,
        key=spec.input.key,
        rows=None if job.input.rows is None else job.input.first_row + job.input.rows,
        batch_size=job.batch_size,
        auto_batch=spec.auto_batch and job.fixed_batch is None and job.batch_size > 0 and not job.has_state,
        read_size=read_size,
        last=spec.last,
        pad_to=job.fixed_batch if job.fixed_batch is not None else (job.batch_size if spec.last == "pad" else None),
        fetch=fetch,
        check_finite=tuple(_can_be_nan(job, fetch)) if spec.nan_policy != "keep" else (),
        on_nan=spec.nan_policy,
        postprocess=tuple(_planned_postprocess(job)),
        output=spec.output.path,
        output_format=spec.output.format,
        columns=job.columns,
        row_shapes=tuple(
            None if name in spec.output.images else _row_shape(job.results.get(name), job.batch_size)
            for name in job.columns
        ),
        rows_per_part=-(-spec.output.rows_per_part // read_size) * read_size,
        max_failed=spec.max_failed,
        max_consecutive=spec.max_consecutive,
        retries=spec.retries,
        progress_timeout=spec.progress_timeout,
        identity=job.identity,
        committed_rows=job.output.rows,
        reports=spec.reports,
        memory_limit=spec.limits.memory,
        disk_limit=spec.limits.disk,
        upload=spec.output.url,
        images=spec.output.images,
        trim=any(model.spec.memory.trim for model in job.models),
        replaces=job.output.run if job.output.state == "stale" else None,
    )


def with_batch_size(step: RunJob, size: int) -> RunJob:
    """Return a job with another number of rows in a run, and what follows from it."""
    read_size = step.read_size // max(step.batch_size, 1) * size
    return replace(
        step,
        batch_size=size,
        read_size=read_size,
        rows_per_part=-(-step.rows_per_part // read_size) * read_size,
        pad_to=None if step.pad_to is None else size,
    )


def _row_shape(tensor: TensorType | None, batch_size: int) -> tuple[int | None, ...] | None:
    """Return the sizes of a result's rows as far as the graph fixes them."""
    if tensor is None or tensor.shape is None or batch_size == 0:
        return None
    return tuple(size if isinstance(size, int) else None for size in tensor.shape[1:])


def _can_be_nan(job: ResolvedJob, fetch: Sequence[str]) -> Iterator[str]:
    """Yield the outputs that are, or may hold, floating numbers."""
    values = {value.name: value for value in job.model.facts.outputs}
    yield from (name for name in fetch if job.outputs[name].dtype in FLOATING or values[name].kind != "tensor")


def _planned_adapters(choice: AdapterChoice) -> PlannedAdapters:
    return PlannedAdapters(
        names=choice.names,
        always=choice.always,
        column=choice.column,
        mapping=choice.mapping,
        otherwise=choice.otherwise,
    )


def _planned_step(step: StepSpec, tensor: TensorType) -> PlannedStep:
    return PlannedStep(
        name=step.name,
        options=step.options,
        results=step.results,
        dtype=tensor.dtype,
        shape=tensor.shape,
        layout=tensor.layout,
    )


def _planned_input(binding: Binding, job: ResolvedJob) -> PlannedInput:
    steps = tuple(_planned_step(step, tensor) for step, tensor in zip(binding.steps, binding.stages, strict=False))
    return PlannedInput(
        name=binding.value.name,
        columns=binding.columns,
        stacked=binding.stacked,
        read_dtype=binding.source.dtype,
        steps=steps,
        dtype=binding.target.dtype or "",
        shape=_contract(binding, job),
        limits=_limits(binding),
    )


def _limits(binding: Binding) -> tuple[float, float] | None:
    """Return what values may be: as declared, and within a constant table that they index."""
    ranges = [limits for limits in (binding.declared and binding.declared.limits, binding.value.limits) if limits]
    return (max(low for low, _ in ranges), min(high for _, high in ranges)) if ranges else None


def _contract(binding: Binding, job: ResolvedJob) -> Shape | None:
    """Return what every run's tensor must be: the graph's shape, with sizes that only the manifest fixes."""
    graph = binding.target.shape
    declared = binding.declared.tensor.shape if binding.declared else None
    if graph is None or declared is None:
        return declared if graph is None else graph
    first = graph[0] if job.batch_size and graph else None
    merged = [want if isinstance(want, int) else have for have, want in zip(graph, declared, strict=True)]
    return (first, *merged[1:]) if job.batch_size else tuple(merged)


def _planned_postprocess(job: ResolvedJob) -> Iterator[PlannedStep]:
    for step in job.postprocess:
        if job.needed.intersection(step.results):
            yield _planned_step(step, job.results[step.reads])
