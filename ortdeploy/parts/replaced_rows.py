"""Replaces rows of a committed part by new results, or removes rows from it.

If nobody else may be using the part's files, they are rewritten: the rows that stay, unchanged, and the new ones. A
file that may be carried away at this moment, or that another job reads, is not touched. New rows then go into a file of
their own beside it, and replace those of equal number. New rows for a part that another deployment made get a file of
their own, too, but the old rows are removed from the part.
"""

from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.files.walk import held_folder
from ortdeploy.ledger.changes import as_spans, rows_in
from ortdeploy.ledger.letters import letter
from ortdeploy.ledger.records import NewFile, Part, Revision, Rewrite, Span, part_name, replaced_name
from ortdeploy.parts.merge_rows import write_lines
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.parts.part_row_index import PartRowIndex
from ortdeploy.parts.recovery import commit
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.rows import FailedRow
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.row_files import IMAGES, RECORDINGS, is_of_row
from ortdeploy.streaming.exploded import ROW


class NewRows(Struct, frozen=True, kw_only=True):
    """New content of all rows of `spans`: the file `path` with `rows`, and the rows that failed or were skipped.

    `withdrawn` rows no longer count. `through`: rows of changed files have run again up to this row. `adds`: no row
    had a result before.
    """

    spans: tuple[Span, ...]
    path: Path | None = None
    rows: tuple[int, ...] = ()
    failed: tuple[FailedRow, ...] = ()
    skipped: tuple[int, ...] = ()
    withdrawn: bool = False
    through: int | None = None
    adds: bool = False


class PartRewriter:
    """Replaces rows in the parts of one output."""

    def __init__(
        self, output: OpenOutput, step: RunJob, *, made_by: MadeBy, roots: Sequence[str], part_digits: int
    ) -> None:
        """Take the output of a job, and what makes its new rows; names of parts have numbers of `part_digits` digits.

        `roots` are the folders below which links may lead.
        """
        self._output, self._declared, self._made_by = output, step.output, made_by
        self._allowed = (str(output.folder), *roots)
        self._module = SINKS[step.output.format]
        self._digits = part_digits
        self._failed: set[int] = set()
        self._lines = PartRowIndex(
            output.folder, self._module, exploded=bool(step.output.explode), has_row=ROW in step.input.key
        )

    def replace(self, part: Part, failed_before: Iterable[int], new: NewRows) -> Rewrite:
        """Replace rows of a part; return how it was rewritten. Raises OSError, OrtdeployError."""
        goes = {*rows_in(new.spans, part.start, part.end)}
        self._failed = {*failed_before}
        after = _counted(part, len(self._failed - goes), goes, new)
        beside = self._declared.removable or bool(self._declared.readers)
        beside = beside or (new.adds and part.revision > 0)  # its own file may hold old rows, unnumbered
        after, files, removed = self._beside(after, new) if beside else self._anew(part, after, goes, new)
        rewrite = Rewrite(
            part=after,
            files=tuple(files),
            removed=tuple(removed),
            spans=new.spans,
            letters=tuple(map(letter, new.failed)),
            through=new.through,
            may_be_gone=self._declared.removable,
        )
        commit(self._output, rewrite, self._made_by)
        self._remove_pictures(goes.difference(new.rows))
        return rewrite

    def _beside(self, part: Part, new: NewRows) -> tuple[Part, list[NewFile], list[str]]:
        """Write new rows into a file of their own; return the part with it."""
        if new.withdrawn:
            return part, [], []
        revision = part.revision + 1
        part = replace(part, revision=revision)
        if not new.rows:
            return part, [], []
        written = self._write(part_name(part.number, self._digits, self._module.SUFFIX, revision), [], new)
        return replace(part, revisions=(*part.revisions, self._revision(revision, written, new))), [written], []

    def _revision(self, revision: int, written: NewFile, new: NewRows) -> Revision:
        return Revision(
            revision=revision,
            file=written.file,
            bytes=written.bytes,
            rows=tuple(sorted(new.rows)),
            sha256=written.sha256,
            mtime_ns=written.mtime_ns,
            deployment=self._made_by.digest,
        )

    def _anew(self, before: Part, part: Part, goes: set[int], new: NewRows) -> tuple[Part, list[NewFile], list[str]]:
        """Rewrite the files of a part that lose or get rows; return the part with them."""
        in_place = part.deployment in {None, self._made_by.digest}
        nothing = replace(new, path=None, rows=())
        made = _Made()
        part = replace(part, **self._own_file(before, goes, new if in_place else nothing, made))
        later = [self._without(before, one, goes, nothing, made) for one in before.revisions]
        part = replace(part, revisions=tuple(one for one in later if one.file not in made.removed))
        if new.rows and not in_place:
            part, files, _ = self._beside(part, new)
            made.files += files
        return part, made.files, made.removed

    def _own_file(self, part: Part, goes: set[int], new: NewRows, made: "_Made") -> dict[str, Any]:
        """Rewrite a part's own file if it changes; return the part's fields about it."""
        written = self._rewritten(part, part, goes, new, made)
        if written is not None:
            return {name: getattr(written, name) for name in ("file", "bytes", "sha256", "mtime_ns")}
        return {"file": None, "bytes": 0, "sha256": None, "mtime_ns": None} if part.file in made.removed else {}

    def _without(self, part: Part, one: Revision, goes: set[int], nothing: NewRows, made: "_Made") -> Revision:
        """Rewrite a revision of a part if it loses rows; return it as it is then."""
        written = self._rewritten(part, one, goes, nothing, made)
        if written is None:
            return one
        rows = tuple(row for row in one.rows if row not in goes)
        return replace(one, rows=rows, bytes=written.bytes, sha256=written.sha256, mtime_ns=written.mtime_ns)

    def _rewritten(
        self, part: Part, file: Part | Revision, goes: set[int], new: NewRows, made: "_Made"
    ) -> NewFile | None:
        """Rewrite a file without the rows that leave it; None if it stays, or is deleted with all of its rows."""
        lines = self._lines.of(part, file, self._failed)
        stays = [place for place, row in enumerate(lines) if row not in goes]
        if len(stays) == len(lines) and not new.rows:
            return None
        if not stays and not new.rows:
            made.removed.append(str(file.file))
            return None
        name = file.file or part_name(part.number, self._digits, self._module.SUFFIX)
        old = [] if file.file is None else [(self._lines.sound(file), lines)]
        written = self._write(name, old, new, {*stays})
        made.files.append(written)
        return written

    def _write(
        self, name: str, old: Sequence[tuple[Path, Sequence[int]]], new: NewRows, stays: Container[int] = ()
    ) -> NewFile:
        """Write a file of the old lines that stay and of new rows, in the order of their rows."""
        sources = [path for path, _ in old]
        numbers = [row for _, lines in old for row in lines]
        wanted = [place for place in range(len(numbers)) if place in stays]
        if new.path is not None:
            lines = self._module.row_numbers(new.path) if self._declared.explode else new.rows
            sources.append(new.path)
            wanted += range(len(numbers), len(numbers) + len(lines))
            numbers += lines
        order = sorted(wanted, key=numbers.__getitem__)
        return write_lines(self._module, sources, order, self._output.folder / replaced_name(name), name)

    def _remove_pictures(self, rows: Container[int]) -> None:
        """Delete the pictures of rows that have no result any more; those that may be carried away stay."""
        output = self._declared
        for folder in (IMAGES, RECORDINGS) if rows and output.files and not output.removable else ():
            with suppress(FileNotFoundError), held_folder(self._output.folder / folder, self._allowed) as held:
                for file in list(held.iterdir()):
                    if is_of_row(file.name, output.files, rows):
                        file.unlink(missing_ok=True)


class _Made(Struct):
    """Files of a part that were rewritten, and names of those to delete."""

    files: list[NewFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def _counted(part: Part, failed: int, goes: set[int], new: NewRows) -> Part:
    """Return a part with the counts that it has when rows have been replaced; `failed` other rows have failed."""
    skipped = tuple(sorted({*part.skipped_rows}.difference(goes).union(new.skipped)))
    withdrawn = part.withdrawn
    if new.withdrawn:
        withdrawn = as_spans(goes.union(rows_in(withdrawn, part.start, part.end)))
    part = replace(
        part, failed=failed + len(new.failed), skipped=len(skipped), skipped_rows=skipped, withdrawn=withdrawn
    )
    return replace(part, committed=part.rows - part.failed - part.skipped - part.withdrawn_rows)
