"""Facts about data: input files and their columns, output folders, files that operations read."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct, field

from ortdeploy.facts.problems import Package, Problem
from ortdeploy.files.compact_list import CompactList
from ortdeploy.tensors.types import TensorType

TEXT_FORMATS = ("csv", "jsonl")
"""Formats whose numbers have no element type; they are read as what the model input takes."""

FORMATS_WITH_GAPS = ("arrow", "csv", "jsonl", "parquet")
"""Formats in which a value may be missing."""


class HashedFile(Struct, frozen=True, kw_only=True):
    """A file that was read: where it lies, digest and size of its bytes, and the name by which others speak of it.

    Names are relative, with forward slashes: to the model's folder for external data, to a preset's for vocabularies.
    """

    name: str
    path: str
    sha256: str
    size: int


class ConstantArray(Struct, frozen=True, kw_only=True):
    """An array of a file, as nested lists of its values; `problem` says why it can be no constant of a step."""

    dtype: str
    content: Any = None
    problem: str = ""


class FileFacts(Struct, frozen=True, kw_only=True):
    """A file that is handed on as it is, such as a label file with its lines, or a folder; `files` are those in it.

    `arrays` are those of a .npz by name, or the one of a .npy by an empty name.
    """

    path: str
    sha256: str = ""
    files: tuple[HashedFile, ...] = ()
    lines: tuple[str, ...] = ()
    arrays: Mapping[str, ConstantArray] = field(default_factory=dict)
    problem: Problem | None = None


class FileState(NamedTuple):
    """A file by its path from the manifest, with forward slashes, and what changes when it does."""

    path: str
    size: int
    mtime_ns: int


class FileStates(CompactList):
    """An unchangeable list of the states of files; a million take about ten megabytes."""

    NUMBERS = 2

    @classmethod
    def of(cls, states: Iterable[FileState]) -> "FileStates":
        """Return states as such a list."""
        return states if isinstance(states, FileStates) else cls.pack(states)

    make = staticmethod(partial(tuple.__new__, FileState))
    """Return the state that cells are; as FileState does, without a call in Python."""


NO_FILES = FileStates()


GONE = 2
"""What a known file's `done` is in a list, and in the ledger, if it has gone; 1 while it is there."""

_NOTHING: Mapping[str, "KnownFile"] = {}


class UnreadableFile(Struct, frozen=True, kw_only=True):
    """A new input file that cannot be read, and why: it counts as one failed row until it changes."""

    path: str
    size: int
    mtime_ns: int
    reason: str

    @property
    def state(self) -> FileState:
        """The file as it was found."""
        return FileState(self.path, self.size, self.mtime_ns)


class KnownFile(Struct, frozen=True, kw_only=True):
    """An input file that a run has taken up; `done`: all of its rows are accounted for, in a run that is finished.

    `gone`: a run has seen since then that it is no longer there. `span` are the number of its first row in the job and
    how many rows it has; None: not noted. If its rows are to run again, `rerun` is what is read then. `unreadable`: it
    could not be read, and counts as one failed row.
    """

    state: FileState
    done: bool
    gone: bool = False
    repaired: tuple[FileState, ...] = ()
    span: tuple[int, int] | None = None
    rerun: FileState | None = None
    unreadable: bool = False

    def is_known(self, state: FileState) -> bool:
        """Return whether rows of the file were run in a state; `repaired` are those of failed rows that ran again."""
        return state == self.state or state in self.repaired

    @property
    def is_beside(self) -> bool:
        """Whether more is known of it than a packed list has room for."""
        return bool(self.repaired) or self.rerun is not None or self.unreadable


_NO_SPAN = -1


class KnownFiles(CompactList):
    """An unchangeable list of known files.

    `beside` are those of which more is known than most: repairs, reruns, and that they could not be read.
    """

    NUMBERS = 5

    def __init__(
        self, blocks: Sequence[bytes] = (), count: int = 0, beside: Mapping[str, KnownFile] = _NOTHING
    ) -> None:
        """Take packed blocks of `count` entries in all."""
        super().__init__(blocks, count)
        self.beside = beside

    @classmethod
    def of(cls, known: Iterable[KnownFile]) -> "KnownFiles":
        """Return known files as such a list."""
        if isinstance(known, KnownFiles):
            return known
        files = tuple(known)
        cells = [cls.cells_of(one.state, GONE if one.gone else int(one.done), one.span) for one in files]
        packed = cls.pack(cells)
        packed.beside = {one.state.path: one for one in files if one.is_beside}
        return packed

    @staticmethod
    def cells_of(state: FileState, done: int, span: tuple[int, int] | None) -> tuple[Any, ...]:
        """Return a file as the cells of its entry; `done` is 2 if it is gone."""
        return (*state, done, *(span or (_NO_SPAN, _NO_SPAN)))

    def underway(self) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of files of an unfinished run; of most lists, no entry is looked at for that."""
        found = self.cells_of_blocks(lambda _names, _sizes, _times, done, *_span: 0 in done)
        return (cells for cells in found if not cells[3])

    def make(self, cells: tuple[Any, ...]) -> KnownFile:
        """Return the known file that an entry is."""
        path, size, mtime_ns, done, first_row, rows = cells
        if path in self.beside:
            return self.beside[path]
        return KnownFile(
            state=FileState(path, size, mtime_ns),
            done=bool(done),
            gone=done == GONE,
            span=None if first_row == _NO_SPAN else (first_row, rows),
        )


class ArrivalPolicy(Struct, frozen=True, kw_only=True):
    """What a job makes of an input that is empty, and of files that change or go after their rows were run.

    `stable_for` is in seconds: files that changed more recently are left for the next run.
    """

    on_empty: str = "fail"
    on_change: str = "refuse"
    on_remove: str = "keep"
    stable_for: float = 0.0


STRICT_ARRIVALS = ArrivalPolicy()
"""The default of manifests: an empty input and a changed file are refused."""


class Dialect(Struct, frozen=True, kw_only=True):
    """How a table is written.

    `delimiter` stands between the cells of a CSV record, which has at most `lines_per_record` lines, None if the
    manifest does not say. A text of `empty` is an empty cell, in every format.
    """

    delimiter: str = ","
    empty: tuple[str, ...] = ()
    lines_per_record: int | None = None

    @property
    def records(self) -> tuple[str, int | None]:
        """What decides where records begin."""
        return self.delimiter, self.lines_per_record


PLAIN = Dialect()
"""The default of manifests."""

OWN = Dialect(lines_per_record=sys.maxsize)
"""How ortdeploy writes tables: a text in them is whole, however long it is."""


class DeclaredInput(Struct, frozen=True, kw_only=True):
    """An input as its manifest declares it: where its files are, and what the files do not tell.

    `patterns` are paths, relative to the manifest's `folder`; they may lead only into the folder or `roots`. `row_type`
    is the type of raw tensors' rows; `settings` are the keys that only some formats have. `memory_limit` is the job's,
    in bytes.
    `only`: of the files that are there, those of a plan, by path from the manifest; the others are left for the next
    run, whatever they are. `sets_aside`: a file of many rows that cannot be read may fail as one row, without the
    others. `dialect` is how tables are written. The columns `carried` are written beside the results.
    """

    folder: str
    patterns: tuple[str, ...]
    roots: tuple[str, ...] = ()
    format: str | None = None
    row_type: TensorType | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    dialect: Dialect | None = None
    arrivals: ArrivalPolicy = STRICT_ARRIVALS
    memory_limit: int | None = None
    only: frozenset[str] | None = None
    sets_aside: bool = False
    carried: tuple[str, ...] = ()


class InputFacts(Struct, frozen=True, kw_only=True):
    """A job's input. `columns` are those that files name; `rows` is None when only reading would tell.

    `row_type` is what the manifest says of files that do not. `files` are those to read, and `states` how they are;
    `present` are all that the manifest names now. `first_row` rows came from others before, and the last `rows_before`
    of them are the first of the first file. `changed` names files that an earlier run has taken up and that are not as
    they were, `repairable` those among them of which rows have failed; those of `rerun` may have changed, and their
    rows run again, `rerun_rows` of them. `gone` names those whose rows are run and that are no longer there; files to
    read are like those that were `moved`, each with its path before and now. `unsettled` files are left for the next
    run. `memory_limit` is the job's, in bytes; `held_bytes` is what the largest file takes that cannot be read in
    pieces, or not row by row. `unreadable` files are left out, and each of them fails as one row. `rates` are the
    sample rates of recordings in Hz, each with the rows that have it. Columns `beside` the others feed an input only by
    their name.

    `dialect` says how tables are written. Names that are `repeated` in a file stand for no column.

    `settings` are the keys of the input that only some formats have.

    `unseekable` is a file that was counted for a plan of parts and that is read from its start for each of them.

    `types` has by column the type that holds its values in all files, by the names of `tensors/arrow_types`; of JSON
    lines those of `carried` columns, as first rows tell. `differing` says of columns why files cannot be read as one.

    If the rows are those of another job, `names` says which columns are called otherwise in its files, and the files
    are those that this job has not read. `restarted`: some that it has read, that job does not have any more.
    `superseded` rows of this job stem from rows that the other one has run again or withdrawn since.
    """

    format: str | None = None
    files: Sequence[str] = ()
    states: Sequence[FileState] = NO_FILES
    present: Sequence[FileState] = NO_FILES
    row_type: TensorType | None = None
    dialect: Dialect = PLAIN
    settings: Mapping[str, Any] = field(default_factory=dict)
    first_row: int = 0
    changed: tuple[str, ...] = ()
    repairable: tuple[str, ...] = ()
    rerun: tuple[FileState, ...] = ()
    rerun_rows: int = 0
    rows_before: int = 0
    gone: tuple[str, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()
    unsettled: int = 0
    unreadable: tuple[UnreadableFile, ...] = ()
    digest: str = ""
    columns: Mapping[str, TensorType] = field(default_factory=dict)
    rows: int | None = None
    memory_limit: int | None = None
    held_bytes: int = 0
    rates: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    restarted: bool = False
    superseded: int = 0
    unseekable: str | None = None
    carried: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    differing: Mapping[str, str] = field(default_factory=dict)
    missing_package: Package | None = None
    problem: Problem | None = None

    @property
    def only_column(self) -> str | None:
        """The column that feeds the only input without being named, if no other one could be meant."""
        meant = [name for name in {**self.columns, **self.differing} if name not in self.beside]
        return meant[0] if len(meant) == 1 and not self.repeated else None


class OutputFacts(Struct, frozen=True, kw_only=True):
    """A job's output place: absent, empty, part (a run is not finished), finished, stale or foreign (not ours).

    `stale`: it makes room for a new run, and is kept as `aside`; `run` is the last one's. `made` says of which
    digest the deployments are that made its rows, each with its first row, in order; `layout` is the last one's
    format and columns, if that was noted. `identity` is what the rows there depend on: nothing if an unfinished run
    has left none. A foreign output may name the `ledger` that knows it. `free_bytes` are left on its file system.
    `read_only` says why nothing can be written there, which matters only where something is left to do. `shards`
    says of an output that was made in shards whether a plan of it is `open` or all are `closed`.
    `left_over`: a compact, a retry or a shard that was killed has left something in it, to complete or to delete.
    Of its `rows`, `committed` gave a result, `failed` failed, and `skipped` were skipped.
    `threads` names the thread layout with which its rows were made, if that was noted.
    """

    state: str = "absent"
    run: str | None = None
    aside: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    made: tuple[tuple[str | None, int], ...] = ()
    layout: Mapping[str, Any] | None = None
    ledger: str | None = None
    free_bytes: int | None = None
    read_only: Problem | None = None
    shards: str | None = None
    left_over: bool = False
    missing_package: Package | None = None
    problem: Problem | None = None
    threads: str | None = None

    def layout_or(self, first: str | None) -> str | None:
        """Return the name of the thread layout of its next rows: that of its rows, or `first` if there are none."""
        return self.threads if self.made and first is not None else first
