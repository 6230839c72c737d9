"""What the user said, as frozen dataclasses built from a document that the schema has accepted.

Nothing is interpreted here: no file is looked at, no default depends on anything but the text. `at` says where a
part was written, as a path into the document.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from ortdeploy.diagnostics import Span
from ortdeploy.facts.data import STRICT_ARRIVALS, ArrivalPolicy
from ortdeploy.files.object_store import mirror_of
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.document import Document, Path
from ortdeploy.manifest.memory import MemorySpec, arena_config, read_memory
from ortdeploy.manifest.op_steps import OpSpec, read_op
from ortdeploy.manifest.pipelines import PipelineSpec, component_models, read_pipeline, walk
from ortdeploy.plan.timing import ALWAYS, Hours, JobTiming, PauseLimits
from ortdeploy.records import record
from ortdeploy.redaction import shown_path
from ortdeploy.tensors.types import LINE_COLUMNS, TensorType
from ortdeploy.units import parse_size

DEFAULT_ROWS_PER_PART = 100_000

CHECK_RTOL, CHECK_ATOL = 1e-3, 1e-5
"""Default tolerances of golden checks."""

PROBE_RTOL, PROBE_ATOL = 0.05, 0.001
"""Default tolerances of the probe run: float16 and int8 arithmetic pass, zeros and noise do not."""

ROWS_ATOL = 1e-5
"""Default absolute tolerance beside a declared `row_independence: {rtol: …}`."""

RESULT_OPTIONS = ("as", "value_as", "values_as")
"""Options of postprocess steps that name a result."""

ALL_COLUMNS = "*"
"""The pattern that one value under `missing` stands for."""

ROW = "row"
ALWAYS_COLUMNS = ("path", ROW)
"""Key columns that every source offers: the row's file and its number."""


@record
class ProviderSpec:
    """One entry of a provider chain, as written."""

    name: str
    options: Mapping[str, Any]
    at: Path
    device: str | int | None = None
    library: str | None = None


@record
class TensorSpec:
    """A declared input or output; None for what the manifest leaves open. `limits` are lowest and highest value.

    `row_axis` is the axis that counts rows, or none.
    """

    name: str
    tensor: TensorType
    limits: tuple[float, float] | None
    at: Path
    row_axis: int | str | None = None


@record
class SessionSpec:
    """One session that a model may get: `chain_name` when it names a chain, else `chain`.

    `count` of it are opened, and each runs as many batches at once as it has `callers`.
    """

    name: str
    chain_name: str | None
    chain: tuple[ProviderSpec, ...]
    at: Path
    count: int = 1
    callers: int = 1


@record
class CheckSpec:
    """A folder of golden inputs and outputs; tolerances, relative and absolute, for all outputs and for single ones."""

    path: str
    tolerance: tuple[float, float]
    outputs: Mapping[str, tuple[float, float]]
    at: Path


@record
class ModelSpec:
    """A model. `sessions` are tried in order, or all used; `providers:` alone makes one, named like the model.

    `has_providers_and_sessions`: the manifest wrote both. `cpu_fallback` is forbid, warn, allow, a number of nodes or a
    share of them. `probe` is the relative and absolute tolerance of the comparison with the CPU; None leaves it out.
    `auto_threads`: how many sessions of how many threads it gets is measured. `free_threads`: the manifest says nothing
    of that, and its jobs may try. `unchecked`: the manifest says that there
    are no checks. `row_tolerance` is how much a row's results may depend on the rows beside it, relative and absolute;
    None: by element type, where `checks_rows`. `external_data` are the digests of the files beside a model by URL.
    """

    name: str
    path: str
    sha256: str | None
    sessions: tuple[SessionSpec, ...]
    has_providers_and_sessions: bool
    use: str
    on_unavailable: str
    cpu_fallback: str | int
    probe: tuple[float, float] | None
    session: Mapping[str, Any]
    run: Mapping[str, Any]
    memory: MemorySpec
    cache: bool
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    checks: tuple[CheckSpec, ...]
    gate: bool
    at: Path
    auto_threads: bool = False
    free_threads: bool = False
    unchecked: bool = False
    checks_rows: bool = True
    row_tolerance: tuple[float, float] | None = None
    external_data: Mapping[str, str] = field(default_factory=dict)

    @property
    def sessions_at_once(self) -> int:
        """How many sessions take batches at the same time."""
        counts = [session.count for session in self.sessions]
        return sum(counts) if self.use == "all" else max(counts)

    @property
    def callers(self) -> int:
        """How many batches run in one of the sessions at the same time, at most."""
        return max(session.callers for session in self.sessions)


@record
class AdapterSpec:
    """A LoRA adapter file, the model and the version of it that it was made for, and golden checks of the two."""

    name: str
    path: str
    model: str
    sha256: str | None
    model_version: int | None
    adapter_version: int | None
    device: str | None
    checks: tuple[CheckSpec, ...]
    at: Path


@record
class AdapterChoice:
    """The adapters of a job's rows: `always` these, or by the text in a `column`.

    `otherwise` is for a text without an entry in `mapping`: none, fail or an adapter's name.
    """

    always: tuple[str, ...] = ()
    column: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = "fail"

    @property
    def names(self) -> tuple[str, ...]:
        """Every adapter that a row may get."""
        other = () if self.column is None or self.otherwise in {"none", "fail"} else (self.otherwise,)
        return tuple(dict.fromkeys((*self.always, *self.mapping.values(), *other)))


@record
class StepSpec:
    """One prepare or postprocess step: the mapping as written; its first naming key is `name`."""

    name: str
    options: Mapping[str, Any]
    at: Path

    @property
    def op(self) -> OpSpec | None:
        """The operator of a step that is one."""
        return read_op(self.options, self.at) if self.name == "op" else None

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that a postprocess step reads."""
        return tuple(name for _, name in self.op.wires()) if self.op else (str(self.options[self.name]),)

    @property
    def results(self) -> tuple[str, ...]:
        """The columns that a postprocess step makes, in the order in which it returns them."""
        if self.op is not None:
            return tuple(name for _, name in self.op.results())
        return tuple(self.options[key] for key in RESULT_OPTIONS if key in self.options)


@record
class InputSpec:
    """Where a job's rows come from; `columns` maps model inputs to one or several column names.

    Without `paths` they are the committed rows of another job: `jobs` are those that are written, of which one may be.
    `row_type` is that of raw tensors, `rate` the sample rate of recordings in Hz; `exif`: pictures are turned as their
    EXIF orientation says, None if the manifest does not say. `missing` says by column, or by pattern, what an
    empty value stands for; None: its row fails. `values` are by model input those that no row carries.
    """

    paths: tuple[str, ...]
    format: str | None
    row_type: TensorType | None
    rate: int | None
    exif: bool | None
    columns: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, Any]
    key: tuple[str, ...]
    at: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    arrivals: ArrivalPolicy = STRICT_ARRIVALS
    jobs: tuple[str, ...] = ()

    @property
    def job(self) -> str | None:
        """The job whose committed rows are read, if it is not files that are."""
        return self.jobs[0] if self.jobs else None

    @property
    def source_at(self) -> Path:
        """Where it is written what is read."""
        return (*self.at, "job" if self.jobs else "path")


@record
class OutputSpec:
    """Where a job's results go; `columns` empty means all of them.

    `images` are results that are written as files of their own, `explode` those whose items get a line each. `url` is a
    folder on an object store; `path` is then where the output is written before it is uploaded. What is written may be
    carried away if it is `removable`; `keep` seconds later, the ledger may forget it. `on_upgrade` says what
    happens when something that results depend on has changed.
    """

    path: str
    url: str | None
    format: str
    columns: tuple[str, ...]
    rows_per_part: int
    at: Path
    images: tuple[str, ...] = ()
    explode: tuple[str, ...] = ()
    removable: bool = False
    on_upgrade: str = "refuse"
    keep: float | None = None

    @property
    def columns_of_lines(self) -> tuple[str, ...]:
        """The columns that every line gets where each is an item of a row."""
        return LINE_COLUMNS if self.explode else ()

    @property
    def shown(self) -> str:
        """Where they go, as the user knows it."""
        return shown_path(self.url or self.path)


@record
class AdapterUse:
    """Adapters that something names for a model: a job, a step of a pipeline, or a component. `who` says which.

    `together`: they apply at the same time; else a row gets one of them. `job` is the job's name, if it is one.
    """

    who: str
    model: str
    names: tuple[str, ...]
    together: bool
    at: Path
    job: str | None = None


@record
class LimitsSpec:
    """What a job may use: memory of its process and disk of its output in bytes, and threads; None: no limit.

    `at` is where limits are written: the job's own, or the deployment's.
    """

    memory: int | None = None
    threads: int | None = None
    disk: int | None = None
    at: Mapping[str, Path] = field(default_factory=dict)


@record
class BatchSpec:
    """What a job says of its batches. `size` is a number, auto or none, as it is written; None: nothing is."""

    size: int | str | None
    last: str

    @property
    def is_none(self) -> bool:
        """Whether each row is a run of its own: the model has no dimension for rows."""
        return self.size == "none"


@record
class JobSpec:
    """A batch job.

    `model` is the name of a model, or of the `pipeline` that stands in its place; `has_pipeline_and_model`: both
    are written.
    """

    name: str
    model: str
    pipeline: str | None
    has_pipeline_and_model: bool
    adapters: AdapterChoice
    input: InputSpec
    prepare: Mapping[str, tuple[StepSpec, ...]]
    batch: BatchSpec
    postprocess: tuple[StepSpec, ...]
    output: OutputSpec
    max_failed: int | str
    max_consecutive: int | None
    retries: int
    attempts: int | None
    progress_timeout: float | None
    run_timeout: float | None
    on_nan: str | None
    limits: LimitsSpec
    reports: tuple[str, ...]
    at: Path
    timing: JobTiming = ALWAYS

    @property
    def nan_policy(self) -> str:
        """What becomes of rows whose outputs hold NaN or an infinity; kept where the manifest says nothing."""
        return self.on_nan or "keep"


@record
class OnEnd:
    """Who is told of an apply that ends with 1 or 5: a command, the URL of a server; how many seconds each may take."""

    command: tuple[str, ...] | None
    url: str | None
    timeout: float


@record
class Spec:
    """One manifest. `folder` is where its relative paths start; `roots` are further folders they may reach.

    `places` are by the path as written where files lie that are not taken from there.
    """

    name: str
    path: str
    folder: str
    roots: tuple[str, ...]
    sha256: str
    profile: str | None
    sets: tuple[str, ...]
    overlays: tuple[str, ...]
    chains: Mapping[str, tuple[ProviderSpec, ...]]
    models: tuple[ModelSpec, ...]
    adapters: tuple[AdapterSpec, ...]
    jobs: tuple[JobSpec, ...]
    pipelines: tuple[PipelineSpec, ...]
    shared_arena: Mapping[str, int] | None
    document: Document = field(repr=False, compare=False)
    places: Mapping[str, str] = field(default_factory=dict)
    on_end: OnEnd | None = None

    def model(self, name: str) -> ModelSpec | None:
        """Return the model of that name, if there is one."""
        return next((model for model in self.models if model.name == name), None)

    def pipeline(self, name: str | None) -> PipelineSpec | None:
        """Return the pipeline of that name, if there is one."""
        return next((pipeline for pipeline in self.pipelines if pipeline.name == name), None)

    def op_steps(self) -> Iterator[OpSpec]:
        """Yield every step that is an operator of ONNX."""
        for pipeline in self.pipelines:
            yield from (step.op for step in walk(pipeline.steps) if step.op is not None)
        for job in self.jobs:
            steps = (*job.postprocess, *(step for some in job.prepare.values() for step in some))
            yield from (step.op for step in steps if step.op is not None)

    def models_of(self, job: JobSpec) -> tuple[ModelSpec, ...]:
        """Return the declared models that a job runs: its own, or those of its pipeline."""
        pipeline = self.pipeline(job.pipeline)
        names = pipeline.models if pipeline else () if job.pipeline else (job.model,)
        return tuple(model for model in self.models if model.name in names)

    def adapter(self, name: str | None) -> AdapterSpec | None:
        """Return the adapter of that name, if there is one."""
        return next((adapter for adapter in self.adapters if adapter.name == name), None)

    def adapter_uses(self) -> Iterator[AdapterUse]:
        """Yield where adapters are named."""
        for job in self.jobs:
            if job.adapters.names and job.pipeline is None:
                yield AdapterUse(
                    who=f'Job "{job.name}"',
                    model=job.model,
                    names=job.adapters.names,
                    together=job.adapters.column is None,
                    at=(*job.at, "adapter"),
                    job=job.name,
                )
        for pipeline in self.pipelines:
            for model, names, at in pipeline.adapter_uses():
                who = f'Pipeline "{pipeline.name}"'
                yield AdapterUse(who=who, model=model, names=names, together=True, at=at)

    def chain_of(self, session: SessionSpec) -> tuple[ProviderSpec, ...]:
        """Return the chain that a session asks for, as written; nothing when it names one that is not there."""
        return session.chain if session.chain_name is None else self.chains.get(session.chain_name, ())

    def written_chains(self) -> Iterator[tuple[ProviderSpec, ...]]:
        """Yield every chain once, where it is written."""
        yield from self.chains.values()
        yield from (session.chain for model in self.models for session in model.sessions)

    def written_options(self) -> Iterator[tuple[ProviderSpec, str]]:
        """Yield every provider option by its name, with the entry that gives it."""
        yield from ((entry, option) for chain in self.written_chains() for entry in chain for option in entry.options)

    def locate(self, at: Path, *, key: bool = False) -> Span:
        """Return where a part was written: its value, or its key."""
        return self.document.locate_key(at) if key else self.document.locate(at)


def build_spec(
    document: Document,
    *,
    name: str,
    folder: str,
    roots: tuple[str, ...],
    sha256: str,
    profile: str | None,
    sets: tuple[str, ...],
    overlays: tuple[str, ...] = (),
) -> Spec:
    """Build the spec of a document that the schema has accepted."""
    data = document.data
    return Spec(
        name=data.get("name", name),
        path=document.path,
        folder=folder,
        roots=roots,
        sha256=sha256,
        profile=profile,
        sets=sets,
        overlays=overlays,
        chains={key: _chain(value, ("providers", key)) for key, value in data.get("providers", {}).items()},
        models=tuple(_models(data)),
        adapters=tuple(_adapter(key, value) for key, value in data.get("adapters", {}).items()),
        jobs=tuple(_job(key, value, data.get("limits", {})) for key, value in data.get("jobs", {}).items()),
        pipelines=tuple(read_pipeline(key, value) for key, value in data.get("pipelines", {}).items()),
        shared_arena=arena_config(data["shared_arena"]) if "shared_arena" in data else None,
        document=document,
        on_end=_on_end(data["on_end"]) if "on_end" in data else None,
    )


def _on_end(data: Mapping[str, Any]) -> OnEnd:
    command = tuple(data["command"]) if "command" in data else None
    return OnEnd(command=command, url=data.get("url"), timeout=_seconds(data.get("timeout", "30s")))


def _chain(entries: list[Any], at: Path) -> tuple[ProviderSpec, ...]:
    return tuple(_provider(entry, (*at, index)) for index, entry in enumerate(entries))


def _provider(entry: Any, at: Path) -> ProviderSpec:
    if isinstance(entry, str):
        return ProviderSpec(name=entry, options={}, at=at)
    return ProviderSpec(
        name=entry["provider"],
        options=entry.get("options", {}),
        at=at,
        device=entry.get("device"),
        library=entry.get("library"),
    )


def _models(data: Mapping[str, Any]) -> Iterator[ModelSpec]:
    """Yield the models that are declared, and the components of presets."""
    for name, model in data.get("models", {}).items():
        yield _model(name, model, ("models", name), ("models", name))
    for name, pipeline in data.get("pipelines", {}).items():
        for component, model, at, providers_at in component_models(name, pipeline):
            yield _model(component, model, at, providers_at)


def _model(name: str, data: Mapping[str, Any], at: Path, providers_at: Path) -> ModelSpec:
    memory = read_memory(data.get("memory", {}))
    return ModelSpec(
        name=name,
        path=data["path"],
        sha256=data.get("sha256"),
        external_data=data.get("external_data", {}),
        sessions=tuple(_sessions(name, data, providers_at)),
        has_providers_and_sessions="providers" in data and "sessions" in data,
        use=data.get("use", "first"),
        on_unavailable=data.get("on_unavailable", "fail"),
        cpu_fallback=_cpu_fallback(data.get("cpu_fallback", "warn")),
        probe=_probe(data.get("probe", {})),
        session=memory.session_options(data.get("session", {})),
        run=memory.run_options(data.get("run", {})),
        memory=memory,
        cache=data.get("cache", False),
        inputs=_tensors(data.get("inputs", {}), (*at, "inputs")),
        outputs=_tensors(data.get("outputs", {}), (*at, "outputs")),
        gate=data.get("gate", False),
        checks=_checks(data, at),
        at=at,
        auto_threads=data.get("threads") == "auto",
        free_threads=not _fixes_threads(data),
        unchecked=data.get("checks") == [],
        checks_rows=data.get("row_independence") is not False,
        row_tolerance=_row_tolerance(data.get("row_independence")),
    )


_FIXING = frozenset({
    "intra_op_num_threads", "inter_op_num_threads", "execution_mode", "use_per_session_threads",
    "use_deterministic_compute", "enable_profiling", "optimized_model_filepath",
})  # fmt: skip
"""Session options that belong to one session, and so to one way to use threads."""

_FIXING_CONFIG = frozenset({"session.intra_op_thread_affinities", "session.intra_op.allow_spinning"})


def _fixes_threads(data: Mapping[str, Any]) -> bool:
    """Return whether a model's own words decide its sessions or their threads, or want little memory."""
    session = data.get("session", {})
    written = _FIXING.intersection(session) or _FIXING_CONFIG.intersection(session.get("config", {}))
    return bool(written) or "sessions" in data or "threads" in data or data.get("memory") == "lean"


def _check(entry: Any, at: Path) -> CheckSpec:
    data: Mapping[str, Any] = {"path": entry} if isinstance(entry, str) else entry
    tolerance = data.get("rtol", CHECK_RTOL), data.get("atol", CHECK_ATOL)
    outputs = {
        name: (own.get("rtol", tolerance[0]), own.get("atol", tolerance[1]))
        for name, own in data.get("outputs", {}).items()
    }
    return CheckSpec(path=data["path"], tolerance=tolerance, outputs=outputs, at=at)


def _sessions(model: str, data: Mapping[str, Any], at: Path) -> Iterator[SessionSpec]:
    """Yield the sessions of a model; one on the CPU provider when it says nothing."""
    for index, session in enumerate(data.get("sessions", ())):
        here: Path = (*at, "sessions", index)
        made = _session(session["name"], session["providers"], here, (*here, "providers"))
        yield replace(made, count=session.get("count", 1), callers=session.get("callers", 1))
    if "sessions" not in data and "providers" in data:
        yield _session(model, data["providers"], at, (*at, "providers"))
    elif "sessions" not in data:
        cpu = ProviderSpec(name="CPU", options={}, at=at)
        yield SessionSpec(name=model, chain_name=None, chain=(cpu,), at=at)


def _session(name: str, providers: Any, at: Path, chain_at: Path) -> SessionSpec:
    if isinstance(providers, str):
        return SessionSpec(name=name, chain_name=providers, chain=(), at=at)
    return SessionSpec(name=name, chain_name=None, chain=_chain(providers, chain_at), at=at)


def _probe(value: Any) -> tuple[float, float] | None:
    if value is False:
        return None
    return float(value.get("rtol", PROBE_RTOL)), float(value.get("atol", PROBE_ATOL))


def _row_tolerance(value: Any) -> tuple[float, float] | None:
    """Return the declared tolerance; None if the manifest declares none."""
    return (float(value["rtol"]), float(value.get("atol", ROWS_ATOL))) if isinstance(value, dict) else None


def _cpu_fallback(value: Any) -> str | int:
    """Return forbid, warn, allow, a number of nodes, or a share with its percent sign."""
    limit: str | int = value["max_nodes"] if isinstance(value, dict) else value
    return limit


def _tensors(data: Mapping[str, Any], at: Path) -> tuple[TensorSpec, ...]:
    return tuple(_tensor(name, value, (*at, name)) for name, value in data.items())


def _tensor(name: str, data: Mapping[str, Any], at: Path) -> TensorSpec:
    shape = tuple(data["shape"]) if "shape" in data else None
    limits = data.get("range")
    tensor = TensorType(data.get("dtype"), shape, data.get("layout"))
    return TensorSpec(
        name=name,
        tensor=tensor,
        limits=(limits[0], limits[1]) if limits else None,
        at=at,
        row_axis=data.get("row_axis"),
    )


def _checks(data: Mapping[str, Any], at: Path) -> tuple[CheckSpec, ...]:
    return tuple(_check(entry, (*at, "checks", index)) for index, entry in enumerate(data.get("checks", ())))


def _adapter(name: str, data: Mapping[str, Any]) -> AdapterSpec:
    at: Path = ("adapters", name)
    return AdapterSpec(
        name=name,
        path=data["path"],
        model=data["model"],
        sha256=data.get("sha256"),
        model_version=data.get("model_version"),
        adapter_version=data.get("adapter_version"),
        device=data.get("device"),
        checks=_checks(data, at),
        at=at,
    )


def _job(name: str, data: Mapping[str, Any], limits: Mapping[str, Any]) -> JobSpec:
    at: Path = ("jobs", name)
    batch, errors = data.get("batch", {}), data.get("errors", {})
    report = data.get("report", ())
    return JobSpec(
        name=name,
        model=data.get("pipeline") or data["model"],
        pipeline=data.get("pipeline"),
        has_pipeline_and_model="pipeline" in data and "model" in data,
        adapters=_adapter_choice(data.get("adapter")),
        input=_input(data["input"], (*at, "input")),
        prepare={key: _steps(steps, (*at, "prepare", key)) for key, steps in data.get("prepare", {}).items()},
        batch=BatchSpec(size=batch.get("size"), last=batch.get("last", "short")),
        postprocess=_steps(data.get("postprocess", []), (*at, "postprocess")),
        output=_output(data["output"], (*at, "output")),
        max_failed=errors.get("max_failed", 0),
        max_consecutive=errors.get("max_consecutive"),
        retries=errors.get("retries", 0),
        attempts=errors.get("attempts"),
        progress_timeout=_seconds(errors["progress_timeout"]) if "progress_timeout" in errors else None,
        run_timeout=_seconds(errors["run_timeout"]) if "run_timeout" in errors else None,
        on_nan=errors.get("on_nan"),
        limits=_limits(limits, data.get("limits", {}), at),
        reports=(report,) if isinstance(report, str) else tuple(report),
        at=at,
        timing=_timing(data),
    )


def _timing(data: Mapping[str, Any]) -> JobTiming:
    hours, pause = data.get("hours"), data.get("pause")
    return JobTiming(
        hours=_hours(hours) if hours else None,
        until=_seconds(data["until"]) if "until" in data else None,
        pause=_pause(pause.get("above", {}), pause.get("below", {})) if pause else None,
    )


def _hours(data: Mapping[str, str]) -> Hours:
    return Hours(begin=_minutes(data["from"]), end=_minutes(data["to"]), zone=data.get("zone"))


def _minutes(text: str) -> int:
    hour, _, minute = text.partition(":")
    return int(hour) * 60 + int(minute)


def _pause(above: Mapping[str, str], below: Mapping[str, Any]) -> PauseLimits:
    return PauseLimits(
        temperature=float(above["temperature"].rstrip("C ")) if "temperature" in above else None,
        battery=float(below["battery"].rstrip("% ")) if "battery" in below else None,
        free_disk=parse_size(below["free_disk"]) if "free_disk" in below else None,
    )


def _adapter_choice(data: Any) -> AdapterChoice:
    """Read a name, a list of them, or a choice by a column; nothing and none are the base model."""
    if isinstance(data, dict):
        otherwise = data.get("otherwise", "fail")
        return AdapterChoice(column=data["column"], mapping=data.get("map", {}), otherwise=otherwise)
    names = data if isinstance(data, list) else [data] if data else []
    return AdapterChoice(always=tuple(name for name in names if name != "none"))


def _input(data: Mapping[str, Any], at: Path) -> InputSpec:
    paths = data.get("path", ())
    columns = {
        key: (value,) if isinstance(value, str) else tuple(value) for key, value in data.get("columns", {}).items()
    }
    return InputSpec(
        paths=(paths,) if isinstance(paths, str) else tuple(paths),
        missing=_fillers(data.get("missing", {})),
        format=data.get("format"),
        row_type=TensorType(data["dtype"], tuple(data["shape"])) if "dtype" in data else None,
        rate=data.get("rate"),
        exif=data.get("exif"),
        columns=columns,
        key=tuple(data.get("key", ())),
        at=at,
        values=data.get("values", {}),
        arrivals=_arrivals(data),
        jobs=_names(data.get("job", ())),
    )


def _arrivals(data: Mapping[str, Any]) -> ArrivalPolicy:
    return ArrivalPolicy(
        on_empty=data.get("on_empty", "fail"),
        on_change=data.get("on_change", "refuse"),
        on_remove=data.get("on_remove", "keep"),
        stable_for=_seconds(data.get("stable_for", 0)),
    )


def _fillers(data: Any) -> Mapping[str, Any]:
    """Read what empty values stand for: by name or pattern, or one value for all columns."""
    return data if isinstance(data, dict) else {ALL_COLUMNS: data}


_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: float | str) -> float:
    """Return a duration that is written with its unit; a bare number is seconds."""
    if not isinstance(value, str):
        return float(value)
    number = value.rstrip("dhimns")
    return float(number) * _SECONDS[value[len(number) :]]


def _limits(of_deployment: Mapping[str, Any], own: Mapping[str, Any], at: Path) -> LimitsSpec:
    """Read limits, those of the deployment where the job has none of its own."""
    data = {**of_deployment, **own}
    memory, disk = (parse_size(data[key]) if key in data else None for key in ("memory", "disk"))
    places = {key: (*at, "limits", key) if key in own else ("limits", key) for key in data}
    return LimitsSpec(memory=memory, threads=data.get("threads"), disk=disk, at=places)


def _output(data: Mapping[str, Any], at: Path) -> OutputSpec:
    url = data["path"] if is_url(data["path"]) else None
    return OutputSpec(
        path=data["path"] if url is None else mirror_of(url),
        url=url,
        format=data.get("format", "jsonl"),
        columns=tuple(data.get("columns", ())),
        rows_per_part=data.get("rows_per_part", DEFAULT_ROWS_PER_PART),
        images=tuple(data.get("images", ())),
        explode=_names(data.get("explode", ())),
        removable=data.get("removable", False),
        on_upgrade=data.get("on_upgrade", "refuse"),
        keep=_seconds(data["keep"]) if "keep" in data else None,
        at=at,
    )


def _names(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Read a name, or a list of them."""
    return (value,) if isinstance(value, str) else tuple(value)


_STEP_OPTIONS = frozenset({
    "as", "at", "from", "k", "metadata", "method", "model", "of", "side", "value", "value_as", "values_as",
})  # fmt: skip


def _steps(data: list[Any], at: Path) -> tuple[StepSpec, ...]:
    """Build steps; what names a step is its one key that is not an option of some step."""
    return tuple(StepSpec(name=_step_name(step), options=step, at=(*at, index)) for index, step in enumerate(data))


def _step_name(step: Mapping[str, Any]) -> str:
    return "op" if "op" in step else next(key for key in step if key not in _STEP_OPTIONS)
