"""Finds the input files of a job for whose state no source has vouched, so that only these are looked at again."""

from itertools import chain, islice

from ortdeploy.facts.contents import ContentColumns
from ortdeploy.facts.data import FileStates
from ortdeploy.files.packed import Packer, in_blocks


class VouchedFiles:
    """Compares files that were read whole with those of the plan; both come in the order of the plan."""

    def __init__(self, planned: FileStates) -> None:
        """Take the files of the plan; nothing is read yet."""
        self._planned = planned.cells()
        self._others, self._new_others = Packer(FileStates), Packer(FileStates)
        self._last = ""

    def add(self, contents: ContentColumns) -> None:
        """Add files that were read, in the states that they had then."""
        for read in in_blocks(contents.states()):
            planned = [*islice(self._planned, len(read))]
            if read == planned:
                self._last = read[-1][0]
            else:
                self._planned = chain(planned, self._planned)
                for state in read:
                    self._go_to(state)

    def _go_to(self, state: tuple[str, int, int]) -> None:
        """Go on behind a file; for it, and for those that are passed over, nobody vouches, unless it is as planned."""
        for planned in self._planned:
            self._last = planned[0]
            if planned == state:
                return
            self._pass_over(planned)
            if planned[0] == state[0]:
                return

    def _pass_over(self, planned: tuple[str, int, int]) -> None:
        self._others.add(planned)
        self._new_others.add(planned)

    def pass_over_to(self, path: str) -> None:
        """Go on behind a file that was read, unless this is the last one that was passed: nobody vouches for it."""
        if path != self._last:
            self._go_to((path, -1, -1))

    def new_others(self) -> FileStates:
        """Return the files that were passed since the last call and for which nobody vouches."""
        found: FileStates = self._new_others.packed()
        self._new_others = Packer(FileStates)
        return found

    def others(self) -> FileStates:
        """Return the files of the plan, to the last, that were not read whole in this run, or not as planned."""
        for planned in self._planned:
            self._pass_over(planned)
        left: FileStates = self._others.packed()
        return left
