"""Facts about data: input files and their columns, output folders, files that operations read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ortdeploy.facts.problems import Package, Problem
from ortdeploy.records import record
from ortdeploy.tensors.types import TensorType

TEXT_FORMATS = ("csv", "jsonl")
"""Formats whose numbers have no element type; they are read as what the model input takes."""

FORMATS_WITH_GAPS = ("arrow", "csv", "jsonl", "parquet")
"""Formats in which a value may be missing."""


@record
class HashedFile:
    """A file that was read: where it lies, digest and size of its bytes, and the name by which others speak of it.

    Names are relative, with forward slashes: to the model's folder for external data, to a preset's for vocabularies.
    """

    name: str
    path: str
    sha256: str
    size: int


@record
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

    `gone`: a run has seen since then that it is no longer there. `span` are the number of its first row in the job and
    how many rows it has; None: not noted. Where its rows run again and are not through, `rerun` is what is read then.
    """

    state: FileState
    done: bool
    gone: bool = False
    repaired: tuple[FileState, ...] = ()
    span: tuple[int, int] | None = None
    rerun: FileState | None = None

    def is_known(self, state: FileState) -> bool:
        """Return whether rows of the file were run in a state; `repaired` are those of failed rows that ran again."""
        return state == self.state or state in self.repaired


@record
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


@record
class InputFacts:
    """A job's input. `columns` are those that files name; `rows` is None when only reading would tell.

    `row_type` is what the manifest says of files that do not. `files` are those to read, and `states` how they are;
    `present` are all that the manifest names now. `first_row` rows came from others before, and the last `rows_before`
    of them are the first of the first file. `changed` names files that an earlier run has taken up and that are not as
    they were; those of `rerun` may be so, and their rows run again, `rerun_rows` of them. `gone` names those whose rows
    are run and that are no longer there. `unsettled` files are left for the next run. `memory_limit` is the job's, in
    bytes; `held_bytes` is what the largest file takes that cannot be read in pieces, or not row by row. `rates` are the
    sample rates of recordings in Hz, each with the rows that have it. Columns `beside` the others feed an input only by
    their name.

    Where the rows are those of another job, `names` says which columns are called otherwise in its files, and the files
    are those that this job has not read. `restarted`: some that it has read, that job does not have any more.
    `superseded` rows of this job stem from rows that the other one has run again or withdrawn since.
    """

    format: str | None = None
    files: tuple[str, ...] = ()
    states: tuple[FileState, ...] = ()
    present: tuple[FileState, ...] = ()
    row_type: TensorType | None = None
    first_row: int = 0
    changed: tuple[str, ...] = ()
    rerun: tuple[FileState, ...] = ()
    rerun_rows: int = 0
    rows_before: int = 0
    gone: tuple[str, ...] = ()
    unsettled: int = 0
    digest: str = ""
    columns: Mapping[str, TensorType] = field(default_factory=dict)
    rows: int | None = None
    memory_limit: int | None = None
    held_bytes: int = 0
    rates: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    restarted: bool = False
    superseded: int = 0
    missing_package: Package | None = None
    problem: Problem | None = None

    @property
    def only_column(self) -> str | None:
        """The column that feeds the only input without being named, where no other could be meant."""
        meant = [name for name in self.columns if name not in self.beside]
        return meant[0] if len(meant) == 1 else None


@record
class OutputFacts:
    """A job's output place: absent, empty, part (some parts are committed), finished, stale or foreign (not ours).

    `stale`: it makes room for a new run, and is kept as `aside`; `run` is the last one's. `made` says of which digest
    the deployments are that made its rows, each with its first row, in order; `layout` is the last one's format and
    columns, if that was noted. A foreign output may name the `ledger` that knows it. `free_bytes` are left on its file
    system. `read_only` says why nothing can be written there, which matters only where something is left to do.
    `shards` says of an output that was made in shards whether a plan of it is `open` or all are `closed`.
    `left_over`: a compact or retry that was killed has left something in it to complete.
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
    shards: str | None = None
    left_over: bool = False
    missing_package: Package | None = None
    problem: Problem | None = None
