"""Joins small parts into larger ones, exactly once even after a kill.

Parts that follow each other become one, up to the size that the manifest gives to parts. It has the number of the last
of them, so that parts stay in the order of their rows, and the next free name with that number (`part-N.r1`), so that
no name is used twice. Lines stay as they are. A row that was written again is in it once, with its last result. Only
parts of one deployment, with the same models, adapters and versions, are joined. A part with a file that was carried
away stays as it is.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.events import log
from ortdeploy.ledger.changes import as_spans, rows_in
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import NewFile, OutputRecord, Part, Rewrite, part_name, replaced_name
from ortdeploy.parts.merge_rows import write_lines
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.parts.part_row_index import PartRowIndex
from ortdeploy.parts.recovery import commit, recover
from ortdeploy.reports.report import renew_report, report_due, report_written
from ortdeploy.sinks.catalogue import SINKS


class CompactionResult(Struct, frozen=True, kw_only=True):
    """How many parts a job had `before` and has `after` they were joined; or `why_not`, if nothing was done."""

    job: str
    output: str
    before: int = 0
    after: int = 0
    why_not: str | None = None


class CompactionTarget(Struct, frozen=True, kw_only=True):
    """One output whose small parts are joined; `has_row`: a column `row` may have the numbers of rows."""

    ledger: Ledger
    output: str
    folder: Path
    shown: str
    format: str
    rows_per_part: int
    removable: bool
    exploded: bool
    has_row: bool

    @property
    def _open(self) -> OpenOutput:
        return OpenOutput(name=self.output, folder=self.folder, ledger=self.ledger, upload=None)

    def compact(self) -> tuple[int, int]:
        """Join parts; return how many there were, and how many there are. Raises OrtdeployError, OSError."""
        known = recover(self._open, self)
        groups = list(self._groups(known))
        if groups:
            report_due(self.folder)
        for group in groups:
            self._put_together(known, group)
        record = self.ledger.output(self.output) or known
        renew_report(self.folder, record, self.ledger.failures(self.output))  # a killed command may not have done it
        report_written(self.folder)
        return len(known.parts), len(record.parts)

    def _groups(self, record: OutputRecord) -> Iterator[list[Part]]:
        """Yield parts that become one."""
        group: list[Part] = []
        for part in record.parts:
            if group and not self._fits(group, part, record.first_row):
                yield from self._worth_it(group)
                group = []
            if self._is_small(part):
                group.append(part)
        yield from self._worth_it(group)

    def _worth_it(self, group: list[Part]) -> Iterator[list[Part]]:
        if len(group) > 1 or sum(len(part.files) for part in group) > 1:
            yield group

    def _fits(self, group: Sequence[Part], part: Part, first_row: int) -> bool:
        """Return whether a part may be joined with the parts of a group before it."""
        rows = sum(one.committed for one in (*group, part))
        is_alike = (group[-1].provenance, group[-1].deployment) == (part.provenance, part.deployment)
        follows = part.start == group[-1].end and part.start != first_row
        return rows <= self.rows_per_part and is_alike and follows and self._is_small(part)

    def _is_small(self, part: Part) -> bool:
        is_there = all((self.folder / str(file.file)).is_file() for file in part.files)
        is_of_one = all(one.deployment == part.deployment for one in part.revisions)
        return is_there and is_of_one and (2 * part.committed <= self.rows_per_part or len(part.files) > 1)

    def _put_together(self, record: OutputRecord, group: Sequence[Part]) -> None:
        last = group[-1]
        revision = last.revision + 1
        part = Part(
            number=last.number,
            start=group[0].start,
            rows=sum(one.rows for one in group),
            committed=sum(one.committed for one in group),
            failed=sum(one.failed for one in group),
            skipped=sum(one.skipped for one in group),
            skipped_rows=tuple(row for one in group for row in one.skipped_rows),
            file=None,
            bytes=0,
            provenance=last.provenance,
            deployment=last.deployment,
            revision=revision,
            withdrawn=as_spans(row for one in group for row in rows_in(one.withdrawn, one.start, one.end)),
        )
        files: tuple[NewFile, ...] = ()
        if part.committed:
            name = part_name(part.number, record.part_digits, SINKS[self.format].SUFFIX, revision)
            files = (self._write(name, group),)
            written = {key: getattr(files[0], key) for key in ("file", "bytes", "sha256", "mtime_ns")}
            part = replace(part, **written)
        rewrite = Rewrite(
            part=part,
            files=files,
            removed=tuple(str(file.file) for one in group for file in one.files),
            spans=(),
            absorbed=tuple(one.number for one in group[:-1]),
            may_be_gone=self.removable,
        )
        if commit(self._open, rewrite):
            log.info("parts.compacted", part=part.number, parts=len(group), rows=part.rows, file=part.file)

    def _write(self, name: str, group: Sequence[Part]) -> NewFile:
        """Write the lines of parts into one file; of a row that was written again, only its last lines."""
        module, failed = SINKS[self.format], self.ledger.failed_rows(self.output)
        lines = PartRowIndex(self.folder, module, exploded=self.exploded, has_row=self.has_row)
        sources: list[Path] = []
        numbers: list[int] = []
        last: dict[int, int] = {}
        origins: list[int] = []
        for part in group:
            gone = {*failed.get(part.number, ()), *part.skipped_rows, *rows_in(part.withdrawn, part.start, part.end)}
            for file in part.files:
                rows = lines.of(part, file, failed.get(part.number, ()))
                sources.append(lines.sound(file))
                origins += [len(sources)] * len(rows)
                numbers += rows
                last |= dict.fromkeys({*rows} - gone, len(sources))
        wanted = [place for place, row in enumerate(numbers) if last.get(row) == origins[place]]
        order = sorted(wanted, key=numbers.__getitem__)
        return write_lines(module, sources, order, self.folder / replaced_name(name), name)
