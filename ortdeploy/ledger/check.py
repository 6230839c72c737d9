"""Checks that the ledger does not contradict itself about an output, before anything is renamed, run or deleted.

SQLite notices few kinds of damage, and a ledger may come with a checkout from a stranger: numbers that contradict each
other double or lose rows, and a name of a file may lead anywhere. What is found here is damage, and told as such.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.ledger import (
    PART_DIGITS,
    Begun,
    Ledger,
    Merge,
    OutputRecord,
    Part,
    Revision,
    damaged,
    part_name,
)

_DIGITS = (5, PART_DIGITS)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[a-z0-9]+")
_NUMBERED = re.compile(r"^part-[0-9]+(?:\.r([0-9]{1,9}))?")


def merged_name(file: str) -> str:
    """Return the name under which a merged file waits until it takes a part's place."""
    return f".{file}.merged"


def begun_name(file: str, rows: int) -> str:
    """Return the name of the file that holds what is through of a part: of other rows, another name."""
    return f".{file}.{rows}.begun"


def check_output(ledger: Ledger, record: OutputRecord, suffix: str) -> None:
    """Raise OrtdeployError if the ledger contradicts itself about an output whose parts have a suffix."""
    merges = ledger.merges(record.output)
    what = find_contradiction(record, merges, suffix)
    what = what or next(_failures(record, merges, ledger.failed_rows(record.output)), None)
    if what is None and record.begun is not None:
        what = next(_failed(record.begun.part, ledger.failed_of_begun(record.output, record.begun)), None)
    if what is not None:
        raise OrtdeployError(damaged(what))
    ledger.inputs(record.output)  # read for its own check
    ledger.provenance(record.origins)
    for digest in record.makers:
        ledger.made_by(digest)


def find_contradiction(record: OutputRecord, merges: Sequence[Merge], suffix: str | None = None) -> str | None:
    """Return the first thing in which a record contradicts itself; None if it is sound.

    Without a suffix, parts may have any, but all the same.
    """
    if record.part_digits not in _DIGITS:
        return f"the names of parts have {record.part_digits} digits"
    return next(_contradictions(record, merges, suffix or _suffix(record)), None)


def _suffix(record: OutputRecord) -> str:
    """Return the suffix of the first part that has a file, if it can be one."""
    names = [part.file for part in record.parts if part.file is not None]
    if record.begun is not None and record.begun.part.file is not None:
        begun = record.begun.part
        names.append(record.begun.part.file.removeprefix(".").removesuffix(begun_name("", begun.rows)[1:]))
    suffix = _NUMBERED.sub("", next(iter(names), ""))
    return suffix if _SUFFIX.fullmatch(suffix) else ""


def _contradictions(record: OutputRecord, merges: Sequence[Merge], suffix: str) -> Iterator[str]:
    start = 0
    for number, part in enumerate(record.parts):
        names = _Names(number, record.part_digits, suffix)
        yield from _of_part(part, number, start, names.given(part.file, part.revision))
        yield from _of_revisions(part, names)
        start += part.rows
    borders = {0, *accumulate(part.rows for part in record.parts)}
    if record.first_row not in borders:
        yield f"rows from {record.first_row} on are said to be of new files, where no part begins"
    if record.status == "done" and record.first_row != start:
        yield f"it says done, with {record.first_row} of {start} rows"
    if record.batch_size is not None and record.batch_size < 1:
        yield f"the batch size is {record.batch_size}"
    if record.revision < 0:
        yield f"the next part is said to have the revision {record.revision}"
    if record.begun is not None:
        yield from _of_begun(record, record.begun, start, suffix)
    parts = {part.number: part for part in record.parts}
    for merge in merges:
        if merge.part not in parts:
            yield f"a file is to take the place of part {merge.part}, which there is not"
            return
        yield from _of_merge(merge, parts[merge.part], _Names(merge.part, record.part_digits, suffix))


@dataclass(frozen=True, slots=True)
class _Names:
    """The names that the files of one part may have."""

    number: int
    digits: int
    suffix: str

    def __call__(self, revision: int) -> str:
        return part_name(self.number, self.digits, self.suffix, revision)

    def given(self, file: str | None, last: int) -> frozenset[str]:
        """Return the one name that has the number of a file's name, where that was given: up to the last one."""
        found = _NUMBERED.match(file or "")
        revision = int(found[1]) if found and found[1] else 0
        return frozenset({self(revision)} if revision <= last else ())


def _of_part(part: Part, number: int, start: int, names: Collection[str]) -> Iterator[str]:
    if part.number != number:
        yield f"part {number} is missing, or there is one too many"
        return
    counts = (part.committed, part.failed, part.skipped)
    if min(part.rows, *counts, part.bytes) < 0 or part.rows != sum(counts):
        how = f"{part.committed} committed, {part.failed} failed and {part.skipped} skipped"
        yield f"part {number} has {part.rows} rows, {how}"
    if part.start != start:
        yield f"part {number} begins with row {part.start}, and the parts before it end before row {start}"
    if len(part.skipped_rows) != part.skipped or not _lie_in(part.skipped_rows, part):
        yield f"part {number} has {part.skipped} skipped rows and names others"
    own = part.committed - sum(len(one.rows) for one in part.revisions)
    if own < 0 or (part.file not in names if own else part.file is not None):
        yield f"the file of part {number} is called {part.file!r}"
    if part.revision < 0:
        yield f"the last later file of part {number} is said to have the number {part.revision}"
    yield from _of_file(part, f"the file of part {number}")


def _of_revisions(part: Part, names: _Names) -> Iterator[str]:
    seen: set[int] = set()
    for one in part.revisions:
        which = f"the file number {one.revision} that was written later for part {part.number}"
        if not 0 < one.revision <= part.revision or one.file != names(one.revision):
            yield f"{which} is called {one.file!r}"
        if not one.rows or not _lie_in(sorted(one.rows), part) or not seen.isdisjoint(one.rows):
            yield f"{which} holds rows of other files"
        if one.bytes < 0:
            yield f"{which} has {one.bytes} bytes"
        seen.update(one.rows)
        yield from _of_file(one, which)


def _of_begun(record: OutputRecord, begun: Begun, start: int, suffix: str) -> Iterator[str]:
    number, part = len(record.parts), begun.part
    name = part_name(number, record.part_digits, suffix, record.revision)
    yield from _of_part(part, number, start, {begun_name(name, part.rows)})
    if begun.name not in {None, name} or part.revision != record.revision:
        yield f"part {number} is to be called {begun.name!r}"
    if part.rows < 1 or record.status == "done":
        yield f"part {number} is said to be begun, with {part.rows} rows"
    if (part.file is None) != (part.sha256 is None):
        yield f"the file of part {number}, which was begun, has the SHA-256 {part.sha256!r}"


def _of_merge(merge: Merge, part: Part, names: _Names) -> Iterator[str]:
    own = names.given(part.file, part.revision) if merge.revision == 0 else {names(merge.revision)}
    is_last = merge.revision in {0, part.revision}
    if merge.file not in own or merge.temporary != merged_name(merge.file) or not is_last:
        yield f"{merge.temporary!r} is to take the place of part {merge.part} as {merge.file!r}"
    if not merge.rows or len(merge.rows) > part.failed or not _lie_in(sorted(merge.rows), part):
        yield f"a file with rows that did not fail is to take the place of part {merge.part}"
    if merge.bytes < 0:
        yield f"a file of {merge.bytes} bytes is to take the place of part {merge.part}"
    yield from _of_file(merge, f"the file that is to take the place of part {merge.part}")


def _of_file(record: Part | Merge | Revision, which: str) -> Iterator[str]:
    if record.sha256 is not None and not _SHA256.fullmatch(record.sha256):
        yield f"{which} has the SHA-256 {record.sha256!r}"


def _lie_in(rows: Sequence[int], part: Part) -> bool:
    """Return whether rows are some of a part's, in order and none twice."""
    ordered = all(before < after for before, after in pairwise(rows))
    return not rows or (ordered and part.start <= rows[0] and rows[-1] < part.start + part.rows)


def _failures(
    record: OutputRecord, merges: Sequence[Merge], failed: Mapping[int, Mapping[int, object]]
) -> Iterator[str]:
    merging = {merge.part: set(merge.rows) for merge in merges}
    for part in record.parts:
        rows = failed.get(part.number, {})
        yield from _failed(part, rows)
        if not merging.get(part.number, set()) <= rows.keys():
            yield f"a file with rows that did not fail is to take the place of part {part.number}"


def _failed(part: Part, rows: Mapping[int, object]) -> Iterator[str]:
    if len(rows) != part.failed or not _lie_in(list(rows), part) or not rows.keys().isdisjoint(part.skipped_rows):
        yield f"part {part.number} has {part.failed} failed rows, and others are named"
