"""What input files held: digests of their content, each with the state in which the file was read.

While rows are read, files are added to columns, because objects for each of a hundred thousand take long to make and
much memory to keep. In the ledger, and until a part is committed, they are packed.
"""

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any

from ortdeploy.facts.data import FileState
from ortdeploy.files.compact_list import OF_A_BLOCK, CompactList

FileContent = tuple[FileState, bytes]
"""A file in the state in which it was read, and the digest of what it held then."""

_DIGEST = Struct("<qq")


class FileContents(CompactList):
    """An unchangeable list of what files held; a digest is two of the numbers."""

    NUMBERS = 4

    @classmethod
    def of(cls, contents: Iterable[FileContent]) -> "FileContents":
        """Return files with their digests as such a list."""
        if isinstance(contents, FileContents):
            return contents
        return cls.pack((*state, *_DIGEST.unpack(digest)) for state, digest in contents)

    def make(self, cells: tuple[Any, ...]) -> FileContent:
        """Return the file and the digest that an entry is."""
        path, size, mtime_ns, *halves = cells
        return FileState(path, size, mtime_ns), _DIGEST.pack(*halves)


class ContentColumns:
    """What files held, in columns, in the order in which they were read."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sizes, self.times = array("q"), array("q")
        self.digests = bytearray()

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: str, size: int, mtime_ns: int, digest: bytes) -> None:
        """Add a file."""
        self.names.append(name)
        self.sizes.append(size)
        self.times.append(mtime_ns)
        self.digests += digest

    def states(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name, the size and the time of each."""
        return zip(self.names, self.sizes, self.times, strict=True)

    def taken(self, most: int | None = None) -> "ContentColumns":
        """Return the first files, or all of them, which do not belong to these any more."""
        taken, end = ContentColumns(), len(self) if most is None else most
        taken.names, self.names = self.names[:end], self.names[end:]
        taken.sizes, self.sizes = self.sizes[:end], self.sizes[end:]
        taken.times, self.times = self.times[:end], self.times[end:]
        at = _DIGEST.size * end
        taken.digests, self.digests = self.digests[:at], self.digests[at:]
        return taken

    def extend(self, others: "ContentColumns") -> None:
        """Add the files of others."""
        self.names += others.names
        self.sizes += others.sizes
        self.times += others.times
        self.digests += others.digests

    def for_a_pack(self) -> tuple[Any, ...]:
        """Return them as a block of `FileContents` takes them."""
        halves = array("q", bytes(self.digests))
        return "\0".join(self.names), self.sizes, self.times, halves[::2], halves[1::2]


class ContentPacker:
    """Packs what files held, as it comes."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._open = ContentColumns()

    def add(self, contents: ContentColumns) -> None:
        """Add files."""
        self._open.extend(contents)
        while len(self._open) >= OF_A_BLOCK:
            self._blocks += FileContents.pack_columns([self._open.taken(OF_A_BLOCK).for_a_pack()]).blocks

    def packed(self) -> FileContents:
        """Return the list of all that was added."""
        last = FileContents.pack_columns([self._open.for_a_pack()] if self._open else [])
        return FileContents([*self._blocks, *last.blocks], OF_A_BLOCK * len(self._blocks) + len(last))
