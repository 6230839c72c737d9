"""Finds the input files of a job for whose state no source has vouched, so that only these are looked at again."""

from collections.abc import Iterable

from ortdeploy.facts.data import FileContent, FileStates
from ortdeploy.files.packed import Packer


class VouchedFiles:
    """Compares files that were read whole with those of the plan; both come in the order of the plan."""

    def __init__(self, planned: FileStates) -> None:
        """Take the files of the plan; nothing is read yet."""
        self._planned = planned.cells()
        self._others = Packer(FileStates)

    def add(self, contents: Iterable[FileContent]) -> None:
        """Add files that were read, in the states that they had then."""
        for state, _ in contents:
            for planned in self._planned:
                if planned == state:
                    break
                self._others.add(planned)
                if planned[0] == state.path:
                    break

    def others(self) -> FileStates:
        """Return the files of the plan, to the last, that were not read whole in this run, or not as planned."""
        for planned in self._planned:
            self._others.add(planned)
        left: FileStates = self._others.packed()
        return left
