"""What the user said, as records that `manifest/read_spec` builds from a document that the schema has accepted.

`at` says where a part was written, as a path into the document.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from ortdeploy.diagnostics import Span
from ortdeploy.facts.data import PLAIN, STRICT_ARRIVALS, ArrivalPolicy, Dialect
from ortdeploy.facts.variants import NO_PROFILE, Choice
from ortdeploy.manifest.document import Document, Path
from ortdeploy.manifest.memory import MemorySpec
from ortdeploy.manifest.op_steps import OpSpec, read_op
from ortdeploy.manifest.pipelines import PipelineSpec, walk
from ortdeploy.plan.adapters import PlannedAdapters
from ortdeploy.plan.recording import Recording
from ortdeploy.plan.timing import ALWAYS, JobTiming
from ortdeploy.redaction import shown_path
from ortdeploy.tensors.types import LINE_COLUMNS, TensorType

Written = tuple[float | None, float | None]
"""A relative and an absolute tolerance; None: not said, so that the formats that are computed in decide."""

RESULT_OPTIONS = ("as", "value_as", "values_as")
"""Options of postprocess steps that name a result."""

ALL_COLUMNS = "*"
"""The pattern that one value under `missing` stands for."""

ROW = "row"
ALWAYS_COLUMNS = ("path", ROW)
"""Key columns that every source offers: the row's file and its number."""


class ProviderSpec(Struct, frozen=True, kw_only=True):
    """One entry of a provider chain, as written."""

    name: str
    options: Mapping[str, Any]
    at: Path
    device: str | int | None = None
    library: str | None = None


class TensorSpec(Struct, frozen=True, kw_only=True):
    """A declared input or output; None for what the manifest leaves open. `limits` are lowest and highest value.

    `row_axis` is the axis that counts rows, or none.
    """

    name: str
    tensor: TensorType
    limits: tuple[float, float] | None
    at: Path
    row_axis: int | str | None = None


class SessionSpec(Struct, frozen=True, kw_only=True):
    """One session that a model may get: `chain_name` when it names a chain, else `chain`.

    `count` of it are opened, and each runs as many batches at once as it has `callers`.
    """

    name: str
    chain_name: str | None
    chain: tuple[ProviderSpec, ...]
    at: Path
    count: int = 1
    callers: int = 1


class CheckSpec(Struct, frozen=True, kw_only=True):
    """A folder of golden inputs and outputs; tolerances, relative and absolute, for all outputs and for single ones."""

    path: str
    tolerance: Written
    outputs: Mapping[str, Written]
    at: Path


class ModelSpec(Struct, frozen=True, kw_only=True):
    """A model. `sessions` are tried in order, or all used; `providers:` alone makes one, named like the model.

    `has_providers_and_sessions`: the manifest wrote both. `cpu_fallback` is forbid, warn, allow, a number of nodes or a
    share of them. `probe` is the relative and absolute tolerance of the comparison with the CPU; None leaves it out.
    `auto_threads`: how many sessions of how many threads it gets is measured. `free_threads`: the manifest says nothing
    of that, and a rule decides. `unchecked`: the manifest says that there
    are no checks. `row_tolerance` is how much a row's results may depend on the rows beside it, relative and absolute;
    None: by element type, if `checks_rows`. `external_data` are the digests of the files beside a model by URL.
    `generates`: ONNX Runtime GenAI opens it, and calls it token by token; `together` with other models of its folder.
    """

    name: str
    path: str
    sha256: str | None
    sessions: tuple[SessionSpec, ...]
    has_providers_and_sessions: bool
    use: str
    on_unavailable: str
    cpu_fallback: str | int
    probe: Written | None
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
    generates: bool = False
    together: bool = False

    @property
    def sessions_at_once(self) -> int:
        """How many sessions take batches at the same time."""
        counts = [session.count for session in self.sessions]
        return sum(counts) if self.use == "all" else max(counts)

    @property
    def callers(self) -> int:
        """How many batches run in one of the sessions at the same time, at most."""
        return max(session.callers for session in self.sessions)


class AdapterSpec(Struct, frozen=True, kw_only=True):
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


class StepSpec(Struct, frozen=True, kw_only=True):
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


class InputSpec(Struct, frozen=True, kw_only=True):
    """Where a job's rows come from; `columns` maps model inputs to one or several column names.

    Without `paths` they are the committed rows of another job: `jobs` are those that are written, of which one may be.
    `row_type` is that of raw tensors, `settings` are the keys that only some formats have. `missing` says by column, or
    by pattern, what an empty value stands for; None: its row fails. `values` are by model input those that no row
    carries. `dialect` is how tables are written, None if the manifest does not say.
    """

    paths: tuple[str, ...]
    format: str | None
    row_type: TensorType | None
    settings: Mapping[str, Any]
    dialect: Dialect | None
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
    def dialect_identity(self) -> list[Any]:
        """What results depend on of how tables are written; nothing if it is the default."""
        dialect = self.dialect or PLAIN
        return [] if dialect == PLAIN else [["dialect", *dialect.records, sorted(dialect.empty)]]

    @property
    def source_at(self) -> Path:
        """Where it is written what is read."""
        return (*self.at, "job" if self.jobs else "path")


class OutputSpec(Struct, frozen=True, kw_only=True):
    """Where a job's results go; `columns` empty means all of them.

    `images` and `recordings` are results that are written as files of their own, `explode` those whose items get a
    line each. `url` is a folder on an object store; `path` is then where the output is written before it is
    uploaded. What is written may be carried away if it is `removable`; `keep` seconds later, the ledger may forget
    it. `on_upgrade` says what happens when something that results depend on has changed. `types` are those of
    carried columns, by name.
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
    types: Mapping[str, str] = field(default_factory=dict)
    recordings: Mapping[str, Recording] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The suffix of the files of each result that is written as files of its own."""
        return {**dict.fromkeys(self.images, "png"), **{name: one.format for name, one in self.recordings.items()}}

    @property
    def columns_of_lines(self) -> tuple[str, ...]:
        """The columns that every line gets where each is an item of a row."""
        return LINE_COLUMNS if self.explode else ()

    @property
    def shown(self) -> str:
        """Where they go, as the user knows it."""
        return shown_path(self.url or self.path)


class AdapterUse(Struct, frozen=True, kw_only=True):
    """Adapters that something names for a model: a job, a step of a pipeline, or a component. `who` says which.

    `together`: they apply at the same time; else a row gets one of them. `job` is the job's name, if it is one.
    """

    who: str
    model: str
    names: tuple[str, ...]
    together: bool
    at: Path
    job: str | None = None


class LimitsSpec(Struct, frozen=True, kw_only=True):
    """What a job may use: memory of its process and disk of its output in bytes, and threads; None: no limit.

    `at` is where limits are written: the job's own, or the deployment's.
    """

    memory: int | None = None
    threads: int | None = None
    disk: int | None = None
    at: Mapping[str, Path] = field(default_factory=dict)


class BatchSpec(Struct, frozen=True, kw_only=True):
    """What a job says of its batches. `size` is a number, auto or none, as it is written; None: nothing is."""

    size: int | str | None
    last: str

    @property
    def is_none(self) -> bool:
        """Whether each row is a run of its own: the model has no dimension for rows."""
        return self.size == "none"


class JobSpec(Struct, frozen=True, kw_only=True):
    """A batch job.

    `model` is the name of a model, or of the `pipeline` that stands in its place; `has_pipeline_and_model`: both
    are written.
    """

    name: str
    model: str
    pipeline: str | None
    has_pipeline_and_model: bool
    adapters: PlannedAdapters
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
    expect: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nan_policy(self) -> str:
        """What becomes of rows whose outputs hold NaN or an infinity; kept where the manifest says nothing."""
        return self.on_nan or "keep"


class OnEnd(Struct, frozen=True, kw_only=True):
    """Who is told how an apply ends, and `when`: a command, a server's URL; how many seconds each call may take."""

    command: tuple[str, ...] | None
    url: str | None
    timeout: float
    when: tuple[str, ...]


class Spec(Struct, frozen=True, kw_only=True):
    """One manifest. `folder` is where its relative paths start; `roots` are further folders they may reach.

    `profile` is the one that it has, and `asked` the one that the command line asks for; `choice` says how it was
    chosen, if it was. `places` are by the path as written where files lie that are not taken from there.
    """

    name: str
    path: str
    folder: str
    roots: tuple[str, ...]
    sha256: str
    profile: str | None
    asked: str | None
    sets: tuple[str, ...]
    overlays: tuple[str, ...]
    chains: Mapping[str, tuple[ProviderSpec, ...]]
    models: tuple[ModelSpec, ...]
    adapters: tuple[AdapterSpec, ...]
    jobs: tuple[JobSpec, ...]
    pipelines: tuple[PipelineSpec, ...]
    shared_arena: Mapping[str, int] | None
    document: Document
    places: Mapping[str, str] = field(default_factory=dict)
    on_end: OnEnd | None = None
    choice: Choice | None = None

    @property
    def profile_to_ask_for(self) -> str | None:
        """The --profile that gives this spec again, whatever may be chosen."""
        return self.profile or (NO_PROFILE if self.choice is not None else None)

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

    def checks(self) -> Iterator[tuple[str, CheckSpec]]:
        """Yield the golden checks of models, and then those of adapters, each with the model that it runs."""
        yield from ((model.name, one) for model in self.models for one in model.checks)
        yield from ((adapter.model, one) for adapter in self.adapters for one in adapter.checks)

    def adapter_uses(self) -> Iterator[AdapterUse]:
        """Yield where adapters are named."""
        for job in self.jobs:
            pipeline = self.pipeline(job.pipeline)
            model = job.model if job.pipeline is None else pipeline.writer if pipeline else None
            if job.adapters.names and model is not None:
                yield AdapterUse(
                    who=f'Job "{job.name}"',
                    model=model,
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
