"""Checks that the ledger does not contradict itself about an output, before anything is renamed, run or deleted.

SQLite notices few kinds of damage, and a ledger may come with a checkout from a stranger: numbers that contradict each
other double or lose rows, and a name of a file may lead anywhere. What is found here is damage, and told as such.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.digests import is_digest
from ortdeploy.ledger.changes import rows_in
from ortdeploy.ledger.damage import damaged
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import (
    PART_DIGITS,
    Begun,
    Forgotten,
    NewFile,
    OutputRecord,
    Part,
    Revision,
    Rewrite,
    Span,
    begun_name,
    merged_name,
    part_name,
    replaced_name,
)

_DIGITS = (5, PART_DIGITS)
_SUFFIX = re.compile(r"\.[a-z0-9]+")
_NUMBERED = re.compile(r"^part-[0-9]+(?:\.r([0-9]{1,9}))?")


def check_output(ledger: Ledger, record: OutputRecord, suffix: str) -> None:
    """Raise OrtdeployError if the ledger contradicts itself about an output; `suffix` is that of its parts."""
    what = find_contradiction(record, suffix)
    what = what or next(_failures(record, ledger.failed_rows(record.output)), None)
    if what is None and record.begun is not None:
        what = next(_failed(record.begun.part, ledger.failed_of_begun(record.output, record.begun)), None)
    if what is not None:
        raise OrtdeployError(damaged(what))
    ledger.check_inputs(record.output)
    ledger.provenance(record.origins)
    for digest in record.makers:
        ledger.made_by(digest)


def find_contradiction(record: OutputRecord, suffix: str | None = None) -> str | None:
    """Return the first contradiction in a record; None if it is sound.

    Without a suffix, parts may have any suffix, but all the same one.
    """
    if record.part_digits not in _DIGITS:
        return f"the names of parts have {record.part_digits} digits"
    return next(_contradictions(record, suffix or _suffix(record)), None)


def _suffix(record: OutputRecord) -> str:
    """Return the suffix of the first file of a part, or of one on its way to becoming one; empty if it is malformed."""
    names = [str(file.file) for part in record.parts for file in part.files]
    names += [file.file for one in record.rewrites for file in one.files]
    if record.begun is not None and record.begun.part.file is not None:
        begun = record.begun.part
        names.append(record.begun.part.file.removeprefix(".").removesuffix(begun_name("", begun.rows)[1:]))
    suffix = _NUMBERED.sub("", next(iter(names), ""))
    return suffix if _SUFFIX.fullmatch(suffix) else ""


def _contradictions(record: OutputRecord, suffix: str) -> Iterator[str]:
    start, least = record.forgotten.rows, record.forgotten.parts
    for part in record.parts:
        number = max(part.number, least)
        names = _Names(number, record.part_digits, suffix)
        yield from _of_part(part, number, start, names.given(part.file, part.revision))
        yield from _of_revisions(part, names)
        start, least = start + part.rows, number + 1
    borders = {*accumulate((part.rows for part in record.parts), initial=record.forgotten.rows)}
    if record.first_row not in borders:
        yield f"row {record.first_row} is said to be the first one of new files, and no part begins with it"
    if record.status == "done" and record.first_row != start:
        yield f"it says done, with {record.first_row} of {start} rows"
    yield from _of_numbers(record)
    if record.begun is not None:
        yield from _of_begun(record, record.begun, start, suffix)
    parts = {part.number: part for part in record.parts}
    for one in record.rewrites:
        before = [parts[number] for number in (*one.absorbed, one.part.number) if number in parts]
        yield from _of_rewrite(one, before, record.part_digits, suffix)
    yield from _of_changes(record, start)


def _of_numbers(record: OutputRecord) -> Iterator[str]:
    if record.batch_size is not None and record.batch_size < 1:
        yield f"the batch size is {record.batch_size}"
    if record.revision < 0:
        yield f"the next part is said to have the revision {record.revision}"
    if not _can_be(record.forgotten) or (record.forgotten.parts and not record.parts):
        yield "what was forgotten cannot have been there"


class _Names(Struct, frozen=True):
    """The names that the files of one part may have."""

    number: int
    digits: int
    suffix: str

    def __call__(self, revision: int) -> str:
        return part_name(self.number, self.digits, self.suffix, revision)

    def given(self, file: str | None, last: int) -> frozenset[str]:
        """Return the name with the revision of `file`, if that revision was given; `last` is the last that was."""
        found = _NUMBERED.match(file or "")
        revision = int(found[1]) if found and found[1] else 0
        return frozenset({self(revision)} if revision <= last else ())


def _of_part(part: Part, number: int, start: int, names: Collection[str]) -> Iterator[str]:
    if part.number != number:
        yield f"part {number} is missing, or there is one too many"
        return
    counts = (part.committed, part.failed, part.skipped)
    if min(part.rows, *counts, part.bytes) < 0 or part.rows != sum(counts) + part.withdrawn_rows:
        how = f"{part.committed} committed, {part.failed} failed and {part.skipped} skipped"
        yield f"part {number} has {part.rows} rows, {how}"
    if part.start != start:
        yield f"part {number} begins with row {part.start}, and the parts before it end before row {start}"
    if len(part.skipped_rows) != part.skipped or not _lie_in(part.skipped_rows, part):
        yield f"part {number} has {part.skipped} skipped rows and names others"
    if not _are_spans(part.withdrawn, part.start, part.end):
        yield f"part {number} is said to be without rows that it never had"
    if not _has_its_file(part, names):
        yield f"the file of part {number} is called {part.file!r}"
    if part.revision < 0:
        yield f"the last later file of part {number} is said to have the number {part.revision}"
    yield from _of_file(part, f"the file of part {number}")


def _has_its_file(part: Part, names: Collection[str]) -> bool:
    """Return whether a part has a file of its own if and only if it holds rows.

    A part whose rows were all written again may have either: its file may have been carried away.
    """
    later = {row for one in part.revisions for row in one.rows}
    if part.committed > len(later):
        return part.file in names
    was_written_again = part.revision > 0 or bool(part.withdrawn)
    return part.file is None or (was_written_again and part.file in names)


def _of_revisions(part: Part, names: _Names) -> Iterator[str]:
    for one in part.revisions:
        which = f"the file number {one.revision} that was written later for part {part.number}"
        if not 0 < one.revision <= part.revision or one.file != names(one.revision):
            yield f"{which} is called {one.file!r}"
        if not one.rows or not _lie_in(sorted(one.rows), part):
            yield f"{which} holds rows of other files"
        if one.bytes < 0:
            yield f"{which} has {one.bytes} bytes"
        yield from _of_file(one, which)


def _of_begun(record: OutputRecord, begun: Begun, start: int, suffix: str) -> Iterator[str]:
    number, part = record.next_part, begun.part
    name = part_name(number, record.part_digits, suffix, record.revision)
    yield from _of_part(part, number, start, {begun_name(name, part.rows)})
    if begun.name not in {None, name} or part.revision != record.revision:
        yield f"part {number} is to be called {begun.name!r}"
    if part.rows < 1 or record.status == "done":
        yield f"part {number} is said to be begun, with {part.rows} rows"
    if (part.file is None) != (part.sha256 is None):
        yield f"the file of part {number}, which was begun, has the SHA-256 {part.sha256!r}"


def _of_rewrite(one: Rewrite, before: Sequence[Part], digits: int, suffix: str) -> Iterator[str]:
    """Yield what is wrong with a rewrite of parts that follow each other; `before` are the parts."""
    number = one.part.number
    what = f"what is to take the place of part {number}"
    follow = all(first.end == second.start for first, second in pairwise(before))
    rows, revision = sum(part.rows for part in before), before[-1].revision if before else 0
    if len(before) != 1 + len(one.absorbed) or not follow or (one.part.rows, one.part.revision) != (rows, revision):
        yield f"{what} has other rows, or other names"
        return
    names = _Names(number, digits, suffix)
    yield from _of_part(one.part, number, before[0].start, names.given(one.part.file, one.part.revision))
    yield from _of_revisions(one.part, names)
    files = {str(file.file) for file in one.part.files}
    if not {file.file for file in one.files} <= files or not {*one.removed} <= {
        file.file for part in before for file in part.files
    }:
        yield f"{what} has files of other names"
    for file in one.files:
        if file.temporary not in {replaced_name(file.file), merged_name(file.file)} or file.bytes < 0:
            yield f"{file.temporary!r} is to become {file.file!r}"
        yield from _of_file(file, what)
    if not _are_spans(one.spans, before[0].start, before[-1].end):
        yield f"{what} holds rows of other parts"


def _can_be(one: Forgotten) -> bool:
    """Return whether the counts of forgotten parts add up."""
    counts = (one.committed, one.failed, one.skipped, one.withdrawn)
    return min(one.parts, *counts) >= 0 and one.rows == sum(counts)


def _of_changes(record: OutputRecord, rows: int) -> Iterator[str]:
    """Yield what is wrong with the ledger's notes about files that have changed."""
    if not _are_spans(record.leaving, 0, rows):
        yield "rows are to leave their parts that are in none"
    spans = tuple((one.first_row, one.rows) for one in record.reruns)
    if not _are_spans(spans, 0, rows) or any(not one.first_row <= one.through < one.end for one in record.reruns):
        yield "rows run again that no file has"


def _are_spans(spans: Sequence[Span], start: int, end: int) -> bool:
    """Return whether spans lie between two rows, in order and without overlap."""
    borders = [border for first_row, rows in spans for border in (first_row, first_row + rows)]
    return all(rows > 0 for _, rows in spans) and [start, *borders, end] == sorted([start, *borders, end])


def _of_file(record: Part | Revision | NewFile, which: str) -> Iterator[str]:
    if record.sha256 is not None and not is_digest(record.sha256):
        yield f"{which} has the SHA-256 {record.sha256!r}"


def _lie_in(rows: Sequence[int], part: Part) -> bool:
    """Return whether rows are rows of a part, in ascending order, none twice."""
    ordered = all(before < after for before, after in pairwise(rows))
    return not rows or (ordered and part.start <= rows[0] and rows[-1] < part.start + part.rows)


def _failures(record: OutputRecord, failed: Mapping[int, Mapping[int, object]]) -> Iterator[str]:
    for part in record.parts:
        if any(span[0] <= row < sum(span) for span in part.withdrawn for row in failed.get(part.number, ())):
            yield f"rows of part {part.number} have failed that count no more"
    for part in record.parts:
        yield from _failed(part, failed.get(part.number, {}))
    for one in record.rewrites:
        before = {row for number in (*one.absorbed, one.part.number) for row in failed.get(number, ())}
        stay = before.difference(rows_in(one.spans, one.part.start, one.part.end))
        again = {json.loads(letter)["row"] for letter in one.letters}
        yield from _failed(one.part, dict.fromkeys(sorted(stay | again)))


def _failed(part: Part, rows: Mapping[int, object]) -> Iterator[str]:
    if len(rows) != part.failed or not _lie_in(list(rows), part) or not rows.keys().isdisjoint(part.skipped_rows):
        yield f"part {part.number} has {part.failed} failed rows, and others are named"
