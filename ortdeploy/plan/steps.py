"""The plan: the steps that would run, as data with a format version, and the facts that they rest on.

`apply` does what the steps say and nothing else. A saved plan is refused when one of its facts has moved.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from ortdeploy.facts.data import PLAIN, Dialect, FileState, HashedFile, UnreadableFile
from ortdeploy.facts.memory import MemoryForecast
from ortdeploy.facts.variants import Choice
from ortdeploy.plan.adapters import PlannedAdapters
from ortdeploy.plan.batching import Batching
from ortdeploy.plan.constants import PlannedConstant
from ortdeploy.plan.narrowed import Narrowed
from ortdeploy.plan.op_graph import Fusion, OpGraph
from ortdeploy.plan.pipeline import PlannedPipeline, PlannedWireStep
from ortdeploy.plan.recording import Recording
from ortdeploy.plan.timing import ALWAYS, JobTiming
from ortdeploy.redaction import shown_path
from ortdeploy.tensors.types import Shape, TensorType

FORMAT_VERSION = 7


class Fact(Struct, frozen=True, kw_only=True):
    """Something that the plan rests on: its kind, which one, and a value that changes when it does."""

    kind: str
    name: str
    value: str


class PlannedProvider(Struct, frozen=True, kw_only=True):
    """One provider of a session's chain, by its full name; `device` when it comes from a plugin package.

    `options` are the text that the provider parses.
    """

    name: str
    options: Mapping[str, str]
    device: "PlannedDevice | None" = None


class PlannedDevice(Struct, frozen=True, kw_only=True):
    """A device of a plugin package's provider, and the library that offers it."""

    index: int
    kind: str
    vendor: str
    name: str
    library: str


class PlannedSession(Struct, frozen=True, kw_only=True):
    """A session by its name, with the chain that it is given, how many of it are opened, and the callers of each.

    `predicted` are nodes by provider before optimization, if kernel definitions decide.
    """

    name: str
    providers: tuple[PlannedProvider, ...]
    count: int = 1
    predicted: Mapping[str, int] | None = None
    callers: int = 1


class PlannedThreadLayout(Struct, frozen=True, kw_only=True):
    """One way to use threads for a model: the sessions that it opens, with which session options."""

    name: str
    candidates: tuple[PlannedSession, ...]
    options: Mapping[str, Any]


class OpenSession(Struct, frozen=True, kw_only=True):
    """Open the sessions of a model: the first of `candidates` that can be opened as the plan says, or all of them.

    `shared_arena` are the settings of the process's arena where they use it; `trim`: freed memory goes back to the
    system. `thread_layouts` are those to measure: the best of them takes the place of `candidates` and `options`.
    `extensions`: the model has operators of onnxruntime-extensions. `files` are the model's, the first its own;
    `option_files` are libraries of providers, and files that options name. A session of op steps has a `graph` in place
    of a file; one with op steps in the model's graph has a `fusion`. `shapes` are of inputs, by name, in place of those
    of the graph. `computes` says in which number
    formats its providers compute that are coarser than the graph's. `generates`: ONNX Runtime GenAI opens the folder of
    the model, and calls it token by token; `together` with other models of the folder.
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
    thread_layouts: tuple[PlannedThreadLayout, ...] = ()
    extensions: bool = False
    files: tuple[HashedFile, ...] = ()
    option_files: tuple[HashedFile, ...] = ()
    graph: OpGraph | None = None
    fusion: Fusion | None = None
    shapes: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)
    computes: tuple[str, ...] = ()
    generates: bool = False
    together: bool = False


class LoadAdapter(Struct, frozen=True, kw_only=True):
    """Load an adapter file for a session; `parameters` are the model's inputs that it brings."""

    adapter: str
    session: str
    path: str
    sha256: str
    size: int = 0
    parameters: tuple[str, ...] = ()


class PlannedStep(Struct, frozen=True, kw_only=True):
    """A prepare or postprocess step with the type it was planned for; `results` are a postprocess step's columns.

    `op` are op steps in a line, with their session.
    """

    name: str
    options: Mapping[str, Any]
    results: tuple[str, ...]
    dtype: str | None
    shape: Shape | None
    layout: str | None
    op: PlannedWireStep | None = None


class PlannedInput(Struct, frozen=True, kw_only=True):
    """One model input: the columns it is fed from, the steps, and what must arrive at the session.

    `shape` is that of a whole run, rows first. `read_dtype` is the element type that text formats are read as; None:
    nothing tells one, so that numbers become float32 if that holds them.
    """

    name: str
    columns: tuple[str, ...]
    stacked: bool
    read_dtype: str | None
    steps: tuple[PlannedStep, ...]
    dtype: str
    shape: Shape | None
    limits: tuple[float, float] | None
    narrowed_by: Narrowed | None = None


class RowCheck(Struct, frozen=True, kw_only=True):
    """Whether a job's first rows run in batches of other sizes too, and how much their results may differ there.

    `agree` is relative to the largest value, and absolute; None: results are not compared, for what `why_not` says.
    `counts`: each output must have one row for each that was fed. `declared` are the models that declare that their
    rows depend on each other, or by how much: their batches are never cut anew without a note. `may_trap`: the
    processor may end the process if other rows run together, as by an integer division by zero.
    """

    counts: bool
    agree: tuple[float, float] | None = None
    why_not: str | None = None
    declared: tuple[str, ...] = ()
    may_trap: bool = False


class UpstreamJob(Struct, frozen=True, kw_only=True):
    """The job whose committed rows are read, with the folder that it writes into.

    `names` says which columns are called otherwise in its files. `digests` are the SHA-256 of the files to read, in
    their order; None if none was noted. `superseded` rows of the job itself stem from rows that the other one has run
    again or withdrawn since, and leave. All of these are those of the moment at which the job begins.
    """

    job: str
    output: str
    names: Mapping[str, str] = field(default_factory=dict)
    digests: tuple[str | None, ...] = ()
    superseded: int = 0


NOT_LOOKED_AT = "So its rows are not counted, and its columns and first rows are not compared with the model."
"""What follows for a job from data that was not looked at."""


class JobInput(Struct, frozen=True, kw_only=True):
    """The rows of a job.

    `patterns` are the paths of the manifest, `files` those to read; `gone` were read before and are no longer there,
    which no run has noted yet. `rerun` were read before and hold something else now: their rows run again, of which
    there were `rerun_rows`. `unreadable` files cannot be read, and each fails as one row. `first_row` rows came from
    others, in runs that are finished, and `rows` counts these too; the last `rows_before` of them are the first of the
    first file. `row_type` is that of raw tensors, `settings` are the keys that only some formats have, unless they have
    the default. `missing` says by column what an empty value stands for; `dialect`, how tables are written. The columns
    of `key` are written beside the results. `types` has by column that is fed or carried the type that holds its values
    in all files. With an `upstream` job, the rows are those that it commits. `elsewhere` says of a plan for another
    machine why the data was not looked at; such a plan is shown, and neither saved nor run.
    """

    format: str
    patterns: tuple[str, ...]
    files: Sequence[FileState]
    gone: tuple[str, ...]
    first_row: int
    rows: int | None
    row_type: TensorType | None
    missing: Mapping[str, Any]
    key: tuple[str, ...]
    on_change: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    dialect: Dialect = PLAIN
    upstream: UpstreamJob | None = None
    rerun: Sequence[FileState] = ()
    rerun_rows: int = 0
    unreadable: tuple[UnreadableFile, ...] = ()
    rows_before: int = 0
    elsewhere: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def files_from(self) -> int:
        """The number of the first row of the first file."""
        return self.first_row - self.rows_before


class JobOutput(Struct, frozen=True, kw_only=True):
    """Where the results of a job go, and what they are.

    `dtypes` and `row_shapes` are those of `columns`; those of `images` and `recordings` are written as files. What is
    written may be carried away if it is `removable`, and may be forgotten `keep` seconds later. `on_upgrade` says what
    happens where what results depend on is not what it was: `changed` names that, and rows from `upgraded_at` on are
    made by what the plan says, those before it by others. `upload` is a folder on an object store that gets what is
    written. `committed_rows` are in committed parts, those that have failed or were skipped too. `replaces` is the run
    whose result makes room for this one's and is kept as `aside`. Columns of `explode` list items, of which each gets a
    line. `readers` are the jobs that read its rows, with the folders that they write into; a file that is read is never
    written again, and is not forgotten before they have it. `types` are those that the manifest gives to carried
    columns, `settled` those that carried columns have in all parts.
    """

    path: str
    format: str
    columns: tuple[str, ...]
    dtypes: tuple[str | None, ...]
    row_shapes: tuple[tuple[int | None, ...] | None, ...]
    images: tuple[str, ...]
    removable: bool
    on_upgrade: str
    upload: str | None
    reports: tuple[str, ...]
    committed_rows: int
    replaces: str | None
    aside: str | None
    explode: tuple[str, ...] = ()
    upgraded_at: int = 0
    changed: tuple[str, ...] = ()
    keep: float | None = None
    readers: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    settled: Mapping[str, str] = field(default_factory=dict)
    recordings: Mapping[str, Recording] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The suffix of the files of each column that is written as files."""
        return {**dict.fromkeys(self.images, "png"), **{name: one.format for name, one in self.recordings.items()}}

    @property
    def shown(self) -> str:
        """Where results go, as the user knows it."""
        return shown_path(self.upload or self.path)


class JobErrors(Struct, frozen=True, kw_only=True):
    """What a job does about rows that fail.

    `on_nan` says what happens to rows for which an output of `check_finite` is not finite. `max_failed` is a number of
    rows or a share. `progress_timeout` and `run_timeout` are in seconds.
    """

    on_nan: str
    check_finite: tuple[str, ...]
    max_failed: int | str
    max_consecutive: int | None
    retries: int
    attempts: int | None
    progress_timeout: float | None
    run_timeout: float | None = None


class JobLimits(Struct, frozen=True, kw_only=True):
    """What a job may take, in bytes, and its threads; `forecast` is the memory that it is predicted to take."""

    memory: int | None
    disk: int | None
    threads: int | None = None
    forecast: MemoryForecast | None = None


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A row that failed on another machine: the row `file_row` of the file `path`, whose content had the digest.

    The other fields are what is known of it.
    """

    path: str
    file_row: int
    sha256: str | None
    source: str
    stage: str
    code: str
    message: str
    key: Mapping[str, Any]


class RunJob(Struct, frozen=True, kw_only=True):
    """Run one job.

    `inputs` are those of the model that columns feed, `values` are fed to the others. `row_axes` are by input and
    output the axes that count rows in the graph where that is not the first. `fetch` are the outputs that are wanted of
    a run. Two runs of equal `identity` give equal results. `retry`: the failed rows are run, and nothing else; with
    `letters`, those of another machine that these are. `trim`: freed memory goes back to the system, as of its model.
    `thread_layout` names the one that its output begins with in place of what the model's step says; an output that was
    begun keeps its own.
    """

    job: str
    session: str
    model: str
    adapters: PlannedAdapters
    input: JobInput
    inputs: tuple[PlannedInput, ...]
    batching: Batching
    fetch: tuple[str, ...]
    postprocess: tuple[PlannedStep, ...]
    output: JobOutput
    errors: JobErrors
    limits: JobLimits
    identity: Mapping[str, str]
    retry: bool = False
    letters: tuple[DeadLetter, ...] | None = None
    trim: bool = False
    pipeline: PlannedPipeline | None = None
    row_axes: Mapping[str, int] = field(default_factory=dict)
    values: tuple[PlannedConstant, ...] = ()
    row_check: RowCheck = RowCheck(counts=False)
    timing: JobTiming = ALWAYS
    expect: Mapping[str, Any] = field(default_factory=dict)
    thread_layout: str | None = None

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """Every adapter that a row may get, those of its pipeline's steps too."""
        return (*self.adapters.names, *(self.pipeline.adapters if self.pipeline else ()))

    @property
    def writing(self) -> Mapping[str, Any] | None:
        """How its texts are written, if a model writes some."""
        preset = self.pipeline.preset if self.pipeline else None
        return preset.arguments if preset is not None and preset.kind == "generate" else None

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions that it needs: its model's, or those of its pipeline's models, and those of op steps."""
        own = self.pipeline.sessions if self.pipeline else (self.session,)
        return (*own, *(line.name for line in self.op_lines))

    @property
    def op_lines(self) -> tuple[PlannedWireStep, ...]:
        """The op steps of its prepare and postprocess steps."""
        steps = (*(step for planned in self.inputs for step in planned.steps), *self.postprocess)
        return tuple(step.op for step in steps if step.op is not None)


class GoldenValue(Struct, frozen=True, kw_only=True):
    """An input or output of a model as golden files are read: its kind, and whether it has a default."""

    name: str
    kind: str
    optional: bool


class SyntheticInput(Struct, frozen=True, kw_only=True):
    """An input that nobody gave values for: its type, and what they may be."""

    name: str
    dtype: str
    shape: Shape | None
    limits: tuple[float, float] | None


class PlannedCheck(Struct, frozen=True, kw_only=True):
    """One session of a model and the golden folders, below `root`, to run on it; with an adapter, if there is one.

    Tolerances are relative and absolute, by output; those of "" are for all others. `record`: outputs are written
    instead of compared. `leak_runs`: instead of that, this number of runs is watched for a leak, on the golden inputs
    or, without folders, on `synthetic_inputs`.
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
    synthetic_inputs: tuple[SyntheticInput, ...] = ()


Step = OpenSession | LoadAdapter | RunJob


class FinishedJob(Struct, frozen=True, kw_only=True):
    """A job that has nothing to run: its result is there already, made from the same things, or its input waits.

    Of its `rows`, `committed` gave a result, `failed` failed, and `skipped` were skipped.
    `waiting` is why there is nothing to read yet; `gone` are input files as `JobInput` has them. `new_run`: a new run
    was asked for. `left_over` is the output if a process that was killed has left something to complete or to delete,
    or if forms of the report are asked for that the last run did not write: `unwritten`. Those that are
    `unmade` cannot be written, because the report that they are made of is gone.
    """

    job: str
    output: str
    path: str
    rows: int
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    new_run: bool = False
    waiting: str | None = None
    gone: tuple[str, ...] = ()
    left_over: JobOutput | None = None
    unwritten: tuple[str, ...] = ()
    unmade: tuple[str, ...] = ()


class PlannedFiles(Struct, frozen=True, kw_only=True):
    """The files that a job's input names, those that are accounted for too."""

    job: str
    files: Sequence[FileState]


class Plan(Struct, frozen=True, kw_only=True):
    """What would run for one manifest in `folder`; `sets`, `overlays` and `roots` are the command line's.

    `profile` is the one that runs, and `choice` says why; None if there was nothing to choose.
    `jobs` are those that the command line chose; None: all. `inputs` are the files of each of them. `gates` are golden
    checks that must pass before any of the steps. `arguments` are the words of the command line that runs the plan,
    without secrets, and `bundle` is the id of the bundle that it is of: reports have them, nothing depends on them.
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
    jobs: tuple[str, ...] | None = None
    inputs: tuple[PlannedFiles, ...] = ()
    arguments: tuple[str, ...] = ()
    bundle: str | None = None
    choice: Choice | None = None
