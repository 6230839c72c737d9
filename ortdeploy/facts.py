"""What this machine and these files are, as frozen plain data that a test can write down.

Facts are gathered by `probe` and never change; decisions made from them are pure. A file that cannot be used is a
fact too: a `Problem`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ortdeploy.tensors import TensorType

DEFAULT_LOCALE = "en_US.UTF-8"
"""The locale of nodes that name none."""

TEXT_FORMATS = ("csv", "jsonl")
"""Formats whose numbers have no element type; they are read as what the model input takes."""

EXTENSION_DOMAINS = ("ai.onnx.contrib", "com.microsoft.extensions")
"""Domains of the operators that onnxruntime-extensions carries; all of them run on the CPU."""

FORMATS_WITH_GAPS = ("arrow", "csv", "jsonl", "parquet")
"""Formats in which a value may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Python package that only some deployments need: what is imported, what is installed, and the extra with it."""

    module: str
    name: str
    extra: str


EXTENSIONS = Package(module="onnxruntime_extensions", name="onnxruntime-extensions", extra="extensions")
OPTIMUM = Package(module="optimum", name="optimum-onnx", extra="diffusion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a file cannot be used: a kind that rules know, and a sentence for people."""

    kind: str
    detail: str


def unreadable(shown: str, error: OSError) -> Problem:
    """Return the problem of a file that cannot be read; `shown` is its name in text."""
    if isinstance(error, FileNotFoundError):
        return Problem(kind="missing", detail=f"There is no file {shown}. Paths are relative to the manifest.")
    return Problem(kind="unreadable", detail=f"{shown} cannot be read: {error.strerror}.")


def unnameable(path: str, shown: str) -> Problem | None:
    """Return the problem of a path that ONNX Runtime cannot be told: Python's binding takes text, which is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        detail = f"ONNX Runtime opens only files whose path is UTF-8, and that of {shown} is not: {path}. Rename it."
        return Problem(kind="unreadable", detail=detail)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device that a plugin package's provider offers: CPU, GPU or NPU, numbered within its provider.

    `memory` names the memory that its tensors live in (None: the CPU's), `host_accessible_memory` a part of the CPU's
    memory that the provider allocates and other providers may mistake for their own.
    """

    provider: str
    index: int
    kind: str
    vendor: str
    name: str
    library: str
    memory: str | None = None
    host_accessible_memory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """A machine: what this process may use of it, and the processor features that kernels care about."""

    system: str
    architecture: str
    python: str
    cores: int
    cpu_quota: float | None
    memory_bytes: int | None
    cpu_flags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel of a provider: the operator versions that it implements, and the types that it takes by parameter."""

    first: int
    last: int
    types: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node of a graph: its operator, the version that its schema has existed since, and types by parameter.

    `expandable`: ONNX Runtime can replace it by the body of its function, if it knows the domain; `local`: by the body
    that the model itself has for it. `body` are the nodes of that function, where onnx can tell. `attributes` are by
    name; numbers and short text as text, the others empty.
    """

    name: str
    domain: str
    operator: str
    since: int
    types: Mapping[str, str] = field(default_factory=dict)
    expandable: bool = False
    local: bool = False
    body: tuple["NodeFacts", ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    """The ONNX Runtime of this machine, and what it can load at most (None, and no opsets, where that is not known).

    `available_providers` are the built-in ones; `devices` are those of plugin packages that the manifest asks for,
    `plugin_problems` say of a provider why its package gives none, or why its built-in library cannot be loaded.
    `runtime_packages` are the installed packages that carry onnxruntime itself. `kernels` are by provider and by
    `domain.operator`, for the providers that tell them. `attributes` are those that this ONNX Runtime knows of an
    operator, by the version since which it has them; `has_default_locale` is None where that is not known.
    """

    version: str
    available_providers: tuple[str, ...]
    max_ir_version: int | None
    max_opsets: Mapping[str, int]
    packages: frozenset[str] = frozenset()
    devices: tuple[DeviceFacts, ...] = ()
    plugin_problems: Mapping[str, str] = field(default_factory=dict)
    runtime_packages: tuple[str, ...] = ()
    kernels: Mapping[str, Mapping[str, tuple[Kernel, ...]]] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    has_default_locale: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a plan is made for: an ONNX Runtime and its machine; this one, or one that a device file describes."""

    runtime: RuntimeFacts
    machine: MachineFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFacts:
    """An input or output of a graph. `kind` is tensor, sequence, map, optional or sparse.

    `element` is the kind of a sequence's elements, `default` the shape of the initializer that an input has.
    `limits` are the lowest and highest value that the graph can take: those of an index into a constant table.
    """

    name: str
    kind: str
    tensor: TensorType
    limits: tuple[int, int] | None = None
    element: str | None = None
    default: tuple[int, ...] | None = None

    @property
    def optional(self) -> bool:
        """Whether it may be left at its default."""
        return self.default is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """How many bytes a model's weights take, those of convolutions among them, and whether they lie in other files."""

    size: int = 0
    of_convolutions: int = 0
    external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model file as its bytes tell it; without `inputs` and `outputs` where `problem` says why.

    `unranked` are values inside the graph whose rank shape inference does not find, `compiled_by` the providers that
    wrote its EPContext nodes. `skeleton` is the model without its weights, for shape inference;
    empty where onnx does not accept it.
    """

    path: str
    sha256: str = ""
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[ValueFacts, ...] = ()
    outputs: tuple[ValueFacts, ...] = ()
    symbols: frozenset[str] = frozenset()
    nodes: tuple[NodeFacts, ...] = ()
    unranked: tuple[str, ...] = ()
    skeleton: bytes = field(default=b"", repr=False, compare=False)
    compiled_by: tuple[str, ...] = ()
    weights: WeightFacts = WeightFacts()
    problem: Problem | None = None

    @property
    def uses_extensions(self) -> bool:
        """Whether some of its operators come with onnxruntime-extensions."""
        return any(node.domain in EXTENSION_DOMAINS for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file that is handed on as it is, such as a label file with its lines."""

    path: str
    sha256: str = ""
    lines: tuple[str, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionFacts:
    """A Stable-Diffusion-1/2-shaped folder: its scheduler's settings, and how its components are to be fed.

    `ports` say by component the inputs' names, element types and ranks, and the output's name. `sha256` is of the files
    beside the models, `folder_sha256` of these and the models.
    """

    sha256: str = ""
    folder_sha256: str = ""
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    ports: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[ValueFacts, ...] = ()
    outputs: tuple[ValueFacts, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """A tensor that an adapter brings: the name of the graph's input that it feeds, its element type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """A LoRA adapter file as its header tells it; versions are 0 where its maker said none."""

    path: str
    sha256: str = ""
    adapter_version: int = 0
    model_version: int = 0
    parameters: tuple[ParameterFacts, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file by its path from the manifest, with forward slashes, and what changes when it does."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """An input file that a run has taken up; `done`: all of its rows are accounted for, in a run that is finished."""

    state: FileState
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """A job's input. `columns` are those that files name; `rows` is None when only reading would tell.

    `row_type` is what the manifest says of files that do not. `files` are those to read, and `states` how they are;
    `first_row` rows came from others before. `changed` names files that an earlier run has taken up and that are not
    what they were.
    """

    format: str | None = None
    files: tuple[str, ...] = ()
    states: tuple[FileState, ...] = ()
    row_type: TensorType | None = None
    first_row: int = 0
    changed: tuple[str, ...] = ()
    digest: str = ""
    columns: Mapping[str, TensorType] = field(default_factory=dict)
    rows: int | None = None
    missing_package: Package | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """A job's output place: absent, empty, part (some parts are committed), finished, stale or foreign (not ours).

    `stale`: it makes room for a new run; `run` is the last one's. `free_bytes` are left on its file system.
    """

    state: str = "absent"
    run: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    free_bytes: int | None = None
    missing_package: Package | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrial:
    """Why a graph cannot take so many rows at a time, and numbers that it can take."""

    rows: int
    problem: str
    fitting: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """One part of what a job takes: process, weights, activations, or rows and results; its size in bytes."""

    what: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """What a job is predicted to take at most, in bytes, and what of it is not known from the graph.

    `fitting` is the largest batch that its limits have room for, where its own does not fit, `count` the largest number
    of each session. `disk` is what its output takes, where that does not depend on values. `layouts` are the ways to
    use threads that its limits have room for, where those are to be measured, with what it takes in each.
    """

    parts: tuple[MemoryPart, ...]
    unknown: str | None = None
    limit: int | None = None
    fitting: int | None = None
    count: int | None = None
    disk: int | None = None
    layouts: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The sum of what is known."""
        return sum(part.size for part in self.parts)

    def total_of(self, layout: str | None) -> int:
        """Return the sum in one way to use threads."""
        return self.total if layout is None else self.layouts.get(layout, self.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that cannot be fed to its model: its number, where it came from, the stage that refused it, and why."""

    row: int
    source: str
    stage: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRows:
    """How many of a job's first rows were looked at, which are refused, and whose numbers are NaN or infinite."""

    rows: int
    refused: tuple[RefusedRow, ...] = ()
    not_finite: tuple[int, ...] = ()

    @property
    def useless(self) -> bool:
        """Whether none of the rows can be fed to the model."""
        return 0 < self.rows == len(self.refused)

    @property
    def text(self) -> str:
        """How many rows are refused, and the first of them with field and place."""
        first = self.refused[0]
        source = f" ({first.source})" if first.source else ""
        return (
            f"{len(self.refused)} of the first {self.rows} rows cannot be fed to the model. Row {first.row}{source}, "
            f"{first.stage}: {first.message.rstrip('.')}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that planning one manifest needs to know; the keys are the manifest's names.

    `resources` are files that operations read, `diffusion` the folders of presets by pipeline.
    `path_problems` are those of files that options name, by kind and path as written. `first_rows`, `batch_trials` and
    `memory` are of jobs that nothing else speaks against.
    """

    runtime: RuntimeFacts
    models: Mapping[str, ModelFacts]
    adapters: Mapping[str, AdapterFacts]
    inputs: Mapping[str, InputFacts]
    outputs: Mapping[str, OutputFacts]
    machine: MachineFacts | None = None
    labels: Mapping[str, FileFacts] = field(default_factory=dict)
    resources: Mapping[str, FileFacts] = field(default_factory=dict)
    diffusion: Mapping[str, DiffusionFacts] = field(default_factory=dict)
    path_problems: Mapping[tuple[str, str], Problem] = field(default_factory=dict)
    first_rows: Mapping[str, FirstRows] = field(default_factory=dict)
    batch_trials: Mapping[str, BatchTrial] = field(default_factory=dict)
    memory: Mapping[str, MemoryForecast] = field(default_factory=dict)
