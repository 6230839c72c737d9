"""Finds the input files of a job for whose state no source has vouched, so that these are looked at, once."""

from array import array
from collections.abc import Iterator

from ortdeploy.facts.contents import ContentColumns
from ortdeploy.facts.data import FileStates
from ortdeploy.files.compact_list import CompactListWriter

_State = tuple[str, int, int]


class InputVerifier:
    """Compares files that were read whole with those of the plan; both come in the order of the plan."""

    def __init__(self, planned: FileStates) -> None:
        """Take the files of the plan; nothing is read yet."""
        self._planned = _Planned(planned)
        self._new_others = CompactListWriter(FileStates)
        self._last = ""
        self._passed: _State = ("", -1, -1)

    def add(self, contents: ContentColumns) -> None:
        """Add files that were read, in the states that they had then."""
        at = 0
        while at < len(contents):
            count = self._planned.pass_equal(contents, at)
            if count:
                self._last = contents.names[at + count - 1]
            else:
                self._go_to((contents.names[at], contents.sizes[at], contents.times[at]))
            at += count or 1

    def _go_to(self, state: _State) -> None:
        """Go on behind a file; for it, and for those that are passed over, nobody vouches, unless it is as planned."""
        for planned in self._planned:
            self._last = planned[0]
            if planned == state:
                return
            self._pass_over(planned)
            if planned[0] == state[0]:
                return

    def _pass_over(self, planned: _State) -> None:
        self._new_others.add(planned)
        self._passed = planned

    def pass_over_to(self, path: str) -> None:
        """Go on behind a file that was read, unless this is the last one that was passed: nobody vouches for it."""
        if path != self._last:
            self._go_to((path, -1, -1))

    def new_others(self) -> FileStates:
        """Return the files that were passed since the last call and for which nobody vouches."""
        found: FileStates = self._new_others.packed()
        self._new_others = CompactListWriter(FileStates)
        return found

    def still_read(self, path: str) -> FileStates:
        """Return the file of a path if it is the last that was passed and nobody vouches for it, as planned."""
        return FileStates.pack([self._passed] if self._passed[0] == path else [])

    def pass_over_rest(self) -> None:
        """Go on to the end of the plan: for the files that are left, nobody vouches."""
        for planned in self._planned:
            self._pass_over(planned)


class _Planned:
    """Goes through the files of a plan once: one after the other, or past many that are equal to others."""

    def __init__(self, files: FileStates) -> None:
        self._blocks = files.by_column()
        self._names: list[str] = []
        self._sizes, self._times = array("q"), array("q")
        self._at = 0

    def __iter__(self) -> Iterator[_State]:
        return self

    def __next__(self) -> _State:
        if not self._left():
            raise StopIteration
        at, self._at = self._at, self._at + 1
        return self._names[at], self._sizes[at], self._times[at]

    def _left(self) -> int:
        """Return how many files are left of a block; 0 at the end."""
        if self._at == len(self._names) and (block := next(self._blocks, None)) is not None:
            names, sizes, times = block
            self._names, self._at = names.split("\0"), 0
            self._sizes, self._times = array("q", sizes.tobytes()), array("q", times.tobytes())
        return len(self._names) - self._at

    def pass_equal(self, contents: ContentColumns, first: int) -> int:
        """Go on behind some files if they are those that were read, from the place `first` on; return how many."""
        count = min(self._left(), len(contents) - first)
        mine, its = slice(self._at, self._at + count), slice(first, first + count)
        if (
            self._sizes[mine] != contents.sizes[its]
            or self._times[mine] != contents.times[its]
            or self._names[mine] != contents.names[its]
        ):
            return 0
        self._at += count
        return count
