"""Rows on their way through a job: blocks that were read, and rows that failed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from ortdeploy.facts.contents import ContentColumns
    from ortdeploy.tensors.columns import Column

FILE_ROW = "\0row of the file"
"""The column that holds the number of each row in its file, from 0; no column of a file is called so."""

FILE_PATH = "\0path of the file"
"""The column that holds the file of each row. It is not `path`, because a column of the file may be called so."""

HIDDEN = (FILE_PATH, FILE_ROW)
"""The columns by which rows are found again; they are never written."""


class FailedRow(Struct, frozen=True, kw_only=True):
    """A row that gave no result: where it came from, in which stage it failed, and why.

    `file_row` is its number in the file `path`, and `sha256` the digest of what the file held. `run` and `plan` are
    those in which it failed last.
    """

    row: int
    source: str
    stage: str
    code: str
    message: str
    key: Mapping[str, Any] = field(default_factory=dict)
    attempts: int = 1
    path: str = ""
    file_row: int | None = None
    sha256: str | None = None
    run: str = ""
    plan: str = ""


class Block(Struct):
    """Rows `start` to `start + count` of the job; `rows` are the numbers of those that `columns` hold.

    `places` say of each of them where it stands, if its file has lines. `contents` is what files held that were read
    whole for these rows, in their order; None if the source reads none whole. `decoding_cpu` are the processor seconds
    in which other threads than the one that reads decoded them. `carried` are keys as their file has them, for those
    that are in `columns` in the element type of the model's input.
    """

    start: int
    count: int
    rows: Sequence[int]
    columns: "dict[str, Column]"
    failed: list[FailedRow]
    places: Sequence[str] = ()
    contents: "ContentColumns | None" = None
    decoding_cpu: float = 0.0
    carried: "dict[str, Column]" = field(default_factory=dict)

    def key(self, name: str) -> "Column":
        """Return a column [rows, …] as its file has it."""
        return self.carried[name] if name in self.carried else self.columns[name]

    def without_values(self) -> "Block":
        """Return the block without what its rows held, which may be megabytes and is of no use once they ran."""
        hidden = {name: self.columns[name] for name in HIDDEN if name in self.columns}
        return replace(self, columns=hidden, carried={})

    def source(self, index: int) -> str:
        """Return where the row at this index of the columns came from: its file, with the line where there is one."""
        if self.places:
            return self.places[index]
        return str(self.columns[FILE_PATH][index]) if FILE_PATH in self.columns else f"row {self.rows[index]}"


class StageError(Exception):
    """Some row of a batch failed in a stage: prepare, contract, run or postprocess.

    `transient`: it may pass when it is tried again. `no_memory`: fewer rows may pass.
    """

    def __init__(
        self, stage: str, code: str, message: str, *, transient: bool = False, no_memory: bool = False
    ) -> None:
        """Take what goes into _failed.jsonl."""
        super().__init__(message)
        self.stage = stage
        self.code = code
        self.transient = transient
        self.no_memory = no_memory
