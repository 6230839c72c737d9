"""To which row of the job each line of a part's file belongs, and that files hold what was written."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.digests import file_digest
from ortdeploy.ledger.records import Part, Revision
from ortdeploy.parts.part_row_index import PartRowIndex
from ortdeploy.sinks.catalogue import SINKS

ROWS = (8, 9, 11, 12)


def part_of(folder: Path, rows: tuple[int, ...] = ROWS) -> Part:
    path = folder / "part-1.jsonl"
    path.write_text("".join(f'{{"row": {row}}}\n' for row in rows))
    return Part(
        number=1, start=8, rows=6, committed=4, failed=1, skipped=1, skipped_rows=(13,), file=path.name,
        bytes=path.stat().st_size, sha256=file_digest(path), mtime_ns=path.stat().st_mtime_ns,
    )  # fmt: skip


def index(folder: Path, *, exploded: bool = False, has_row: bool = False) -> PartRowIndex:
    return PartRowIndex(folder, SINKS["jsonl"], exploded, has_row)


def test_lines_are_the_rows_that_have_neither_failed_nor_were_skipped(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    assert list(index(tmp_path).of(part, part, {10})) == [8, 9, 11, 12]
    assert list(index(tmp_path).of(replace(part, file=None), replace(part, file=None), {10})) == []


def test_rows_of_later_files_and_withdrawn_ones_have_no_line(tmp_path: Path) -> None:
    later = Revision(revision=1, file="part-1.r1.jsonl", bytes=0, rows=(9, 8))
    part = replace(part_of(tmp_path), revisions=(later,), withdrawn=((11, 1),))
    assert list(index(tmp_path).of(part, part, {10})) == [12]
    assert list(index(tmp_path).of(part, later, {10})) == [8, 9]


def test_lines_of_items_say_themselves_of_which_row_they_are(tmp_path: Path) -> None:
    part = part_of(tmp_path, (8, 8, 9, 12))
    assert list(index(tmp_path, exploded=True).of(part, part, {10})) == [8, 8, 9, 12]


@pytest.mark.parametrize(
    ("rows", "found"),
    [((8, 9, 10, 11), (8, 9, 10, 11)), ((9, 8, 11), (8, 9, 11)), ((8, 9, 9, 11), (8, 9, 11)), ((8, 9, 11, 14), (8, 9, 11)), ((8, 9), (8, 9, 11))],
)  # fmt: skip
def test_a_part_that_may_hold_old_rows_is_asked_if_its_column_can_be_that_of_rows(
    tmp_path: Path, rows: tuple[int, ...], found: tuple[int, ...]
) -> None:
    """Row 12 no longer counts, and row 10 failed once and has its line still."""
    part = replace(part_of(tmp_path, rows), withdrawn=((12, 1),), revision=1)
    assert tuple(index(tmp_path, has_row=True).of(part, part, {10})) == found
    assert tuple(index(tmp_path).of(part, part, {10})) == (8, 9, 11)


def test_a_file_of_other_bytes_is_refused(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    assert index(tmp_path).sound(part) == tmp_path / "part-1.jsonl"
    (tmp_path / "part-1.jsonl").write_bytes(b"x" * part.bytes)
    with pytest.raises(OrtdeployError, match="nothing was put into it, nor taken out of it"):
        index(tmp_path).sound(part)
