"""What preflight finds out about models and jobs without running a job: openings, first rows, batch sizes, memory."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.facts.memory import MemoryForecast


class Opening(Struct, frozen=True, kw_only=True):
    """What came of opening a model here: why ONNX Runtime refuses it, or None.

    `with_kernels`: a session of the CPU provider was made; otherwise the graph was loaded only, as for every chain.
    """

    refusal: str | None = None
    with_kernels: bool = False


UNSUPPORTED, BETTER_ANEW = "unsupported", "prefer-recompilation"


class CompiledModel(Struct, frozen=True, kw_only=True):
    """What a provider of this machine says of a model that it has compiled elsewhere: UNSUPPORTED or BETTER_ANEW.

    `compiled` is what the model says of what it was compiled for, and `here` which provider has answered.
    """

    provider: str
    session: str
    verdict: str
    compiled: str
    here: str


class RefusedOperators(Struct, frozen=True, kw_only=True):
    """Op steps in a line that ONNX Runtime does not open: the last of them, their operators, and why."""

    at: tuple[str | int, ...]
    operators: str
    refusal: str


class RefusedBatch(Struct, frozen=True, kw_only=True):
    """Why a graph cannot take a number of rows at a time, and numbers that it can take.

    `output` is one that would not have a row for each that is fed. `of_items`: a step each has too many items at a
    time, or too few are left.
    """

    rows: int
    problem: str
    fitting: tuple[int, ...] = ()
    output: str | None = None
    of_items: bool = False


class LargestValue(Struct, frozen=True, kw_only=True):
    """The value of a model's run that has the most elements, inside the graph too; sizes that are open count as 1."""

    model: str
    name: str
    elements: int


class RefusedRow(Struct, frozen=True, kw_only=True):
    """A row that cannot be fed to its model: its number, where it came from, the stage that refused it, and why."""

    row: int
    source: str
    stage: str
    message: str


class RowRoom(Struct, frozen=True, kw_only=True):
    """What one of a job's first rows takes in arrays, in bytes, where a graph may leave sizes open.

    `read`: as it was read; `fed`: as it is fed, if that is not the same array. `decoding`: what decoding rows takes for
    a while, of as many as are decoded at once. `made`: what prepare steps make of a row meanwhile; if `by_row`, of one
    at a time, because rows differ in shape. `scratch`: what they take beside that for one row at a time. `beside`: what
    the blocks take that are prepared at the same time as one.
    """

    read: int = 0
    fed: int = 0
    decoding: int = 0
    made: int = 0
    by_row: bool = False
    scratch: int = 0
    beside: int = 0


_SHOWN_ROWS = 5


class FirstRows(Struct, frozen=True, kw_only=True):
    """How many of a job's first rows were looked at, which are refused, and whose numbers are NaN or infinite.

    `transparent` are pictures with pixels that are not opaque, if nothing says what lies behind them; `windowless` are
    shorter than a window, of a job that drops what fills none. `narrowed` says which inputs have numbers that their
    provider may change.

    `first` is the number of the first of them: those before it have run. `complete`: there are no others. `stopped`:
    the last of `refused` is where reading ends for good.
    """

    rows: int
    first: int = 0
    refused: tuple[RefusedRow, ...] = ()
    not_finite: tuple[int, ...] = ()
    transparent: tuple[int, ...] = ()
    windowless: tuple[int, ...] = ()
    narrowed: tuple[str, ...] = ()
    complete: bool = False
    stopped: bool = False
    room: RowRoom = field(default_factory=RowRoom)

    def before(self, end: int) -> "FirstRows":
        """Return what is known of the rows before one: those behind it are never run."""
        kept = tuple(one for one in self.refused if one.row < end)
        return replace(self, refused=kept, stopped=self.stopped and kept[-1:] == self.refused[-1:])

    @property
    def consecutive(self) -> int:
        """The most rows that are refused one after the other."""
        longest, run, before = 0, 0, None
        for one in self.refused:
            run = run + 1 if before is not None and one.row == before + 1 else 1
            longest, before = max(longest, run), one.row
        return longest

    @property
    def useless(self) -> bool:
        """Whether none of the rows can be fed to the model."""
        return 0 < self.rows == len(self.refused)

    @property
    def shown(self) -> str:
        """The rows, in the words of a message."""
        return f"the first {self.rows}{' new' if self.first else ''} rows"

    def some(self, rows: Sequence[int], one: str, several: str) -> str:
        """Return in words what some of the rows are, such as "is shorter" of one, and "are shorter" of several."""
        if len(rows) == 1:
            return f"Row {rows[0]} of {self.shown} {one}"
        return f"{len(rows)} of {self.shown} {several}, row {rows[0]} the first of them"

    @property
    def text(self) -> str:
        """How many rows are refused, the first of them with field and place, and the numbers of some others."""
        first, others = self.refused[0], [str(one.row) for one in self.refused[1:]]
        source = f" ({first.source})" if first.source else ""
        shown = ", ".join(others[:_SHOWN_ROWS]) + (", …" if len(others) > _SHOWN_ROWS else "")
        how = "the same way" if all(one.message == first.message for one in self.refused) else "too"
        also = f" Rows {shown} fail {how}." if others[1:] else f" Row {shown} fails {how}."
        return (
            f"{len(self.refused)} of {self.shown} cannot be fed to the model. Row {first.row}{source}, "
            f"{first.stage}: {first.message.rstrip('.')}.{also if others else ''}"
        )


class Preflight(Struct, frozen=True, kw_only=True):
    """What was found out beyond the facts: `openings` and `compiled` by model, `folders` by pipeline that writes.

    The others are by job.

    A model or job that a rule has objected to before is missing, and so is a job that is finished.
    """

    openings: Mapping[str, Opening] = field(default_factory=dict)
    folders: Mapping[str, Opening] = field(default_factory=dict)
    compiled: Mapping[str, tuple[CompiledModel, ...]] = field(default_factory=dict)
    refused_operators: Mapping[str, tuple[RefusedOperators, ...]] = field(default_factory=dict)
    first_rows: Mapping[str, FirstRows] = field(default_factory=dict)
    refused_batches: Mapping[str, RefusedBatch] = field(default_factory=dict)
    largest_values: Mapping[str, tuple[LargestValue, ...]] = field(default_factory=dict)
    memory: Mapping[str, MemoryForecast] = field(default_factory=dict)
