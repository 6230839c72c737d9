"""Finds out to which row of the job each line of a part's file belongs."""

from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.changes import rows_in
from ortdeploy.ledger.integrity import is_as_written
from ortdeploy.ledger.records import Part, Revision
from ortdeploy.sinks.protocol import SinkModule


class PartRowIndex(Struct, frozen=True):
    """Finds the rows of lines in the files of one output; `has_row`: a column `row` may have their numbers."""

    folder: Path
    module: SinkModule
    exploded: bool
    has_row: bool

    def of(self, part: Part, file: Part | Revision, failed: Collection[int]) -> Sequence[int]:
        """Return the row of each line of a part's file; `failed` rows of the part have no line. Raises OSError."""
        if file.file is None:
            return ()
        if self.exploded:
            return self.module.row_numbers(self.sound(file))
        if isinstance(file, Revision):
            return sorted(file.rows)
        gone = {*failed, *part.skipped_rows, *rows_in(part.withdrawn, part.start, part.end)}
        gone.update(row for one in part.revisions for row in one.rows)
        rows = [row for row in range(part.start, part.end) if row not in gone]
        return self._with_old_rows(part, rows) if self.has_row and (part.revision or part.withdrawn) else rows

    def _with_old_rows(self, part: Part, rows: list[int]) -> Sequence[int]:
        """Return the row of each line of a part that may still hold rows that were written again, or no longer count.

        It holds them if the output was removable when they were replaced. Then only its column `row` has the numbers.
        """
        found = list(self.module.row_numbers(self.sound(part)))
        is_ours = found == sorted({*found}) and {*rows} <= {*found} <= {*range(part.start, part.end)}
        return found if is_ours else rows

    def sound(self, file: Part | Revision) -> Path:
        """Return the path of a file that holds the bytes that were written. Raises OrtdeployError for any other."""
        path = self.folder / str(file.file)
        if not is_as_written(path, file, digest=None):
            raise OrtdeployError(
                f"{self.folder.name}/{file.file} was committed and holds other bytes than were written. Restore it "
                "from a copy; nothing was put into it, nor taken out of it"
            )
        return path
