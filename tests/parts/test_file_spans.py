"""Which rows of a job each input file has, as blocks of rows tell it."""

from typing import TYPE_CHECKING

from ortdeploy.files.compact_list import OF_A_BLOCK
from ortdeploy.parts.file_spans import FileSpans
from ortdeploy.results.rows import FILE_PATH, FILE_ROW, Block, FailedRow

if TYPE_CHECKING:
    from ortdeploy.tensors.columns import Column


def block(start: int, files: "list[tuple[str, int]]", failed: "list[FailedRow] | None" = None) -> Block:
    """Return a block of rows, each of which is told by its file and its number there."""
    rows = list(range(start, start + len(files)))
    columns: dict[str, Column] = {FILE_PATH: [path for path, _ in files], FILE_ROW: [row for _, row in files]}
    bad = failed or []
    return Block(start=start, count=len(rows) + len(bad), rows=rows, columns=columns, failed=bad, places=[])


def failed(row: int, path: str, file_row: int) -> FailedRow:
    return FailedRow(row=row, source=path, stage="read", code="c", message="m", path=path, file_row=file_row)


def test_a_file_has_the_rows_from_its_first_one_on() -> None:
    spans = FileSpans()
    assert (spans.last, [*spans.all()]) == (None, [])
    spans.add(block(5, [("a", 5), ("b", 0), ("b", 1)]))
    spans.add(block(8, [("b", 2)], [failed(9, "c", 0)]))
    assert [*spans.all()] == [("a", 0, 6), ("b", 6, 2), ("c", 9, 1), ("b", 6, 3)]
    assert spans.last == (9, "c")


def test_many_files_of_one_row_each_are_all_there_each_time_one_asks() -> None:
    spans, count = FileSpans(), 2 * OF_A_BLOCK + 300
    for start in range(0, count, 300):
        spans.add(block(start, [(f"{row}", 0) for row in range(start, min(start + 300, count))]))
    expected = [(f"{row}", row, 1) for row in range(count)]
    assert [*spans.all()] == [*spans.all()] == expected
    assert spans.last == (count - 1, f"{count - 1}")
