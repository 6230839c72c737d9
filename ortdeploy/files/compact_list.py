"""Holds long lists of names, each with a few numbers, in a tenth of the memory that objects take.

A list is cut into blocks of a thousand, and each block is compressed: names of one folder differ in a few letters, and
so do sizes. Going through a list, or to one place in it, unpacks a block at a time.
"""

import heapq
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

OF_A_BLOCK = 1024
SORTED_AT_ONCE = 200_000
"""Names that are objects at once while a folder is listed."""
_LEVEL = 1  # the higher ones take five times as long, and a tenth off


class CompactList(Sequence):  # type: ignore[type-arg]  # subclasses name what they hold
    """An unchangeable list of names that hold no NUL, each with as many numbers as NUMBERS says, of 64 bits."""

    NUMBERS = 0

    def __init__(self, blocks: "Sequence[bytes]" = (), count: int = 0) -> None:
        """Take packed blocks of `count` entries in all, each full but the last."""
        self._blocks = tuple(blocks)
        self._count = count
        self._open: tuple[int, list[Any]] = (-1, [])

    @classmethod
    def pack(cls, cells: "Iterable[Sequence[Any]]") -> "Self":
        """Pack the cells of entries: a name, and the numbers."""
        blocks, count = [], 0
        for some in in_blocks(cells):
            blocks.append(_packed(some))
            count += len(some)
        return cls(blocks, count)

    @classmethod
    def pack_columns(cls, blocks: "Iterable[tuple[Any, ...]]") -> "Self":
        """Pack entries that come as `by_column` yields them, of the lengths that `in_blocks` yields."""
        packed, count = [], 0
        for names, *columns in blocks:
            packed.append(_packed_columns(names, columns))
            count += len(columns[0])
        return cls(packed, count)

    def make(self, cells: "tuple[Any, ...]") -> "Any":
        """Return an entry as users of the list get it."""
        raise NotImplementedError

    @property
    def blocks(self) -> tuple[bytes, ...]:
        """The packed blocks, as the constructor takes them."""
        return self._blocks

    def cells(self, first: int = 0) -> "Iterator[tuple[Any, ...]]":
        """Yield the cells of all entries from a block on, in order."""
        for place in range(first, len(self._blocks)):
            yield from self._unpacked(place)

    def cells_of_blocks(self, are_wanted: "Callable[..., bool]") -> "Iterator[tuple[Any, ...]]":
        """Yield the cells of all entries of the blocks that are wanted; it is asked with what `by_column` yields."""
        for place in range(len(self._blocks)):
            names, columns = self._columns(place)
            if are_wanted(names, *columns):
                yield from self._unpacked(place)

    def by_column(self) -> "Iterator[tuple[Any, ...]]":
        """Yield each block as the text of its names, with NUL between them, and a sequence of each number.

        What can be told of a block at once takes a tenth of what its entries take one by one.
        """
        for place in range(len(self._blocks)):
            names, columns = self._columns(place)
            yield names, *columns

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> "Iterator[Any]":
        return map(self.make, self.cells())

    def __getitem__(self, index: "Any") -> "Any":
        """Return one entry, or a list of some."""
        if isinstance(index, slice):
            wanted = range(*index.indices(self._count))
            return type(self).pack(self._cells_at(place) for place in wanted)
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(index)
        return self.make(self._cells_at(place))

    def __eq__(self, other: object) -> bool:
        """Return whether another list has equal entries, packed or not."""
        if isinstance(other, CompactList):
            return self._count == other._count and self._blocks == other._blocks and self.NUMBERS == other.NUMBERS
        if not isinstance(other, tuple | list):
            return NotImplemented
        return len(other) == self._count and all(mine == its for mine, its in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((self.NUMBERS, self._blocks))

    def __repr__(self) -> str:
        """Show the first entries."""
        return f"<{type(self).__name__} of {self._count}: {[*islice(self, 3)]}>"

    def _cells_at(self, place: int) -> "tuple[Any, ...]":
        block, within = divmod(place, OF_A_BLOCK)
        known, cells = self._open
        if known != block:
            cells = self._unpacked(block)
            self._open = (block, cells)  # in one step, for threads share the list
        found: tuple[Any, ...] = cells[within]
        return found

    def _unpacked(self, block: int) -> "list[tuple[Any, ...]]":
        names, columns = self._columns(block)
        return list(zip(names.split("\0"), *columns, strict=True))

    def _columns(self, block: int) -> "tuple[str, list[memoryview]]":
        data = zlib.decompress(self._blocks[block])
        length = min(OF_A_BLOCK, self._count - block * OF_A_BLOCK)
        width = 8 * length
        columns = [memoryview(data)[at * width : (at + 1) * width].cast("q") for at in range(self.NUMBERS)]
        return data[self.NUMBERS * width :].decode(errors="surrogateescape"), columns


def in_blocks(entries: "Iterable[Any]", most: int | None = None) -> "Iterator[list[Any]]":
    """Yield lists of at most this many entries, else as many as a block has; the last may have fewer."""
    left = iter(entries)
    while some := list(islice(left, most or OF_A_BLOCK)):
        yield some


class Names(CompactList):
    """An unchangeable list of names."""

    def make(self, cells: "tuple[Any, ...]") -> str:
        """Return the name."""
        name: str = cells[0]
        return name


def in_order(names: "Iterable[str]", prefix: str = "") -> "Sequence[str]":
    """Return names sorted, each with a prefix; many of them packed, so that not all are objects at once."""
    left = iter(names)
    runs: list[Names] = []
    while some := sorted(islice(left, SORTED_AT_ONCE)):
        if not runs and len(some) < SORTED_AT_ONCE:
            return [prefix + name for name in some]
        runs.append(Names.pack(zip(some)))
    return Names.pack((prefix + name,) for name in heapq.merge(*runs)) if runs else []


class CompactListWriter:
    """Packs the cells of entries that come one by one."""

    def __init__(self, kind: type[CompactList]) -> None:
        self._kind = kind
        self._blocks: list[bytes] = []
        self._open: list[Sequence[Any]] = []

    def add(self, cells: "Sequence[Any]") -> None:
        """Add an entry."""
        self._open.append(cells)
        if len(self._open) == OF_A_BLOCK:
            self._blocks.append(_packed(self._open))
            self._open = []

    def packed(self) -> "Any":
        """Return the list of all that was added."""
        last = [_packed(self._open)] if self._open else []
        return self._kind([*self._blocks, *last], len(self._blocks) * OF_A_BLOCK + len(self._open))


def _packed(some: "Sequence[Sequence[Any]]") -> bytes:
    names, *columns = zip(*some, strict=True)
    return _packed_columns("\0".join(names), columns)


def _packed_columns(names: str, columns: "Iterable[Sequence[int]]") -> bytes:
    numbers = b"".join(array("q", column).tobytes() for column in columns)
    return zlib.compress(numbers + names.encode(errors="surrogateescape"), _LEVEL)


def next_of(cells: "Iterator[tuple[Any, ...]]") -> "Callable[[], tuple[Any, ...] | None]":
    """Return what gives the next entry each time, and None behind the last."""
    return lambda: next(cells, None)


def joined(some: CompactList, others: CompactList) -> "Iterator[tuple[tuple[Any, ...] | None, tuple[Any, ...]]]":
    """Yield each entry of one list with that of the same name in another, None if there is none, sorted by name."""
    if not others:
        return
    left = next_of(_by_name(some))
    mine = left()
    for its in _by_name(others):
        while mine is not None and mine[0] < its[0]:
            mine = left()
        yield mine if mine is not None and mine[0] == its[0] else None, its


def _by_name(entries: CompactList) -> "Iterator[tuple[Any, ...]]":
    cells = entries.cells()
    runs: list[CompactList] = []
    while some := sorted(islice(cells, SORTED_AT_ONCE), key=itemgetter(0)):
        if not runs and len(some) < SORTED_AT_ONCE:
            return iter(some)
        runs.append(type(entries).pack(some))
    return heapq.merge(*(run.cells() for run in runs), key=itemgetter(0))
