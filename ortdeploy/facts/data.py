"""Facts about data: input files and their columns, output folders, files that operations read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ortdeploy.facts.problems import Package, Problem
from ortdeploy.tensors.types import TensorType

TEXT_FORMATS = ("csv", "jsonl")
"""Formats whose numbers have no element type; they are read as what the model input takes."""

FORMATS_WITH_GAPS = ("arrow", "csv", "jsonl", "parquet")
"""Formats in which a value may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedFile:
    """A file that was read: where it lies, digest and size of its bytes, and the name by which others speak of it.

    Names are relative, with forward slashes: to the model's folder for external data, to a preset's for vocabularies.
    """

    name: str
    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file that is handed on as it is, such as a label file with its lines, or a folder; `files` are those in it."""

    path: str
    sha256: str = ""
    files: tuple[HashedFile, ...] = ()
    lines: tuple[str, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file by its path from the manifest, with forward slashes, and what changes when it does."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """An input file that a run has taken up; `done`: all of its rows are accounted for, in a run that is finished.

    `gone`: a run has seen since then that it is no longer there.
    """

    state: FileState
    done: bool
    gone: bool = False
    repaired: tuple[FileState, ...] = ()

    def is_known(self, state: FileState) -> bool:
        """Return whether rows of the file were run in a state; `repaired` are those of failed rows that ran again."""
        return state == self.state or state in self.repaired


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalPolicy:
    """What a job makes of an input that is empty, and of files that change or go after their rows were run.

    `stable_for` is in seconds: files that changed more recently are left for the next run.
    """

    on_empty: str = "fail"
    on_change: str = "refuse"
    on_remove: str = "keep"
    stable_for: float = 0.0


STRICT_ARRIVALS = ArrivalPolicy()
"""What holds where a manifest says nothing: an empty input and a changed file are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """A job's input. `columns` are those that files name; `rows` is None when only reading would tell.

    `row_type` is what the manifest says of files that do not. `files` are those to read, and `states` how they are;
    `present` are all that the manifest names now. `first_row` rows came from others before. `changed` names files that
    an earlier run has taken up and that are not what they were, `gone` those whose rows are run and that are no longer
    there. `unsettled` files are left for the next run. `memory_limit` is the job's, in bytes; `held_bytes` is
    what the largest file takes that cannot be read in pieces, or not row by row. `rates` are the sample rates of
    recordings in Hz, each with the rows that have it. Columns `beside` the others feed an input only by their name.
    """

    format: str | None = None
    files: tuple[str, ...] = ()
    states: tuple[FileState, ...] = ()
    present: tuple[FileState, ...] = ()
    row_type: TensorType | None = None
    first_row: int = 0
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    unsettled: int = 0
    digest: str = ""
    columns: Mapping[str, TensorType] = field(default_factory=dict)
    rows: int | None = None
    memory_limit: int | None = None
    held_bytes: int = 0
    rates: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    missing_package: Package | None = None
    problem: Problem | None = None

    @property
    def only_column(self) -> str | None:
        """The column that feeds the only input without being named, where no other could be meant."""
        meant = [name for name in self.columns if name not in self.beside]
        return meant[0] if len(meant) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """A job's output place: absent, empty, part (some parts are committed), finished, stale or foreign (not ours).

    `stale`: it makes room for a new run, and is kept as `aside`; `run` is the last one's. `made` says of which digest
    the deployments are that made its rows, each with its first row, in order; `layout` is the last one's format and
    columns, if that was noted. A foreign output may name the `ledger` that knows it. `free_bytes` are left on its file
    system. `read_only` says why nothing can be written there, which matters only where something is left to do.
    """

    state: str = "absent"
    run: str | None = None
    aside: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    made: tuple[tuple[str | None, int], ...] = ()
    layout: Mapping[str, Any] | None = None
    ledger: str | None = None
    free_bytes: int | None = None
    read_only: Problem | None = None
    missing_package: Package | None = None
    problem: Problem | None = None
