"""Protocol of sources: an opened input, used with `with`, that yields blocks of rows in the input's order.

A block is the rows that are read together: one or several batches. It holds columns of the rows that could be read, and
a failed row for each of the others. Memory is flat: a source holds one block, and files are mapped or streamed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from ortdeploy.facts.data import PLAIN, Dialect, InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.results.rows import Block
from ortdeploy.tensors.types import TensorType

if TYPE_CHECKING:
    from ortdeploy.sources.row_index import Indexes

DECODING = {"image": 7 / 3, "audio": 2.0, "wav": 2.0, "bytes": 0.0}
"""What decoding a row takes for a while, by format, in units of its size.

Pillow's own picture takes four bytes a pixel, and its bytes three. Samples are read as float32, and sorted by channel.
"""

DATA = "data"
"""The column of the format `bytes` that has the files' content."""

TRANSPARENT = "\0transparent"
"""A column of pictures that is never written: whether a pixel is not opaque."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What to read: columns with the element type that text is read as, and keys, in whatever type they have.

    If a column has no type, its numbers are read as float32, and a whole number that would be rounded fails its row.
    `types` has by column the type that holds its values in all files, where files have types of their own.
    `missing` gives by column the value that stands for an empty cell of a text format; None: its row fails. `first_row`
    is the number of the files' first row in the job, if other files had the rows before it. `only`: the numbers of the
    rows to read, if not all are wanted. `row_type` is the manifest's type for files that do not have one.
    `memory_limit` is the job's, in bytes. `ends`: how many
    of a file's first and last bytes are wanted. `settings` are those of the format. `threads`: how many may decode rows
    at once.
    `processes`: how many other ones may decode small files. `dialect`: how tables are written.
    """

    dtypes: Mapping[str, str | None]
    keys: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, Any] = field(default_factory=dict)
    first_row: int = 0
    only: Sequence[int] | None = None
    row_type: TensorType | None = None
    memory_limit: int | None = None
    ends: tuple[int, int] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    processes: int = 0
    dialect: Dialect = PLAIN
    indexes: "Indexes | None" = None


def pieces_of(only: Sequence[int], sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield series of consecutive wanted rows, as first row and number of rows, none longer than asked for."""
    asked, place = iter(sizes), 0
    while place < len(only):
        most, first = next(asked), only[place]
        count = 1
        while count < most and place + count < len(only) and only[place + count] == first + count:
            count += 1
        yield first, count
        place += count


def wanted_blocks(
    blocks: Callable[[int, Iterable[int]], Iterator[Block]], only: Sequence[int], sizes: Iterable[int]
) -> Iterator[Block]:
    """Yield blocks of wanted rows from a source that must also read the rows between them."""
    firsts = set()

    def steps() -> Iterator[int]:
        row = only[0]
        for first, count in pieces_of(only, sizes):
            if first > row:
                yield first - row
            firsts.add(first)
            yield count
            row = first + count

    return (block for block in blocks(only[0], steps()) if block.start in firsts) if only else iter(())


class Source(Protocol):
    """An open source."""

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield blocks of the sizes that are asked for (the last may be shorter) from row `start` on.

        If only some rows are wanted, a block has rows with consecutive numbers.
        """


class Setting(Struct, frozen=True, kw_only=True):
    """A key of an input, with the type of its values in a plan, and its default.

    Files of its formats are `files` in words; others have no `trait`. Results are others with values that are
    `changing` than with the default; None: with any other.
    """

    name: str
    type: Any
    files: str
    trait: str
    default: Any = None
    changing: tuple[Any, ...] | None = ()

    def of(self, settings: Mapping[str, Any]) -> Any:
        """Return its value among the settings of an input."""
        return settings.get(self.name, self.default)

    def changes(self, value: Any) -> bool:
        """Return whether results are others with a value than with the default."""
        return value != self.default if self.changing is None else value in self.changing


class SourceModule(Protocol):
    """The names that a format's module has."""

    @property
    def SUFFIXES(self) -> tuple[str, ...]:  # noqa: N802  a module constant
        """File suffixes by which the format is recognised."""

    @property
    def FIRST_ROWS(self) -> int:  # noqa: N802  a module constant
        """How many rows a plan reads: many if reading is cheap, few if each row is decoded."""

    @property
    def PACKAGE(self) -> Package | None:  # noqa: N802  a module constant
        """The package that the format needs, beside the base install."""

    @property
    def SETTINGS(self) -> tuple[Setting, ...]:  # noqa: N802  a module constant
        """The keys of an input that are for this format, and not for all."""

    def probe(self, files: Sequence[str], facts: InputFacts) -> InputFacts:
        """Return the facts completed with columns and rows, or with a problem. The caller handles libraries' errors."""

    def open_source(self, files: Sequence[str], folder: str, wanted: Wanted) -> AbstractContextManager[Source]:
        """Open the files for reading, in this order."""
