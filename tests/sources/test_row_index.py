"""Reading from any row gives what reading from the start and skipping gives, with and without an index."""

import gzip
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.memo_files import memo_files

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.sources import csv, jsonl, row_index, text
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.row_index import START, FileIndex, KeptIndexes, count_rows, known_rows

LONG_AGO = 1_000_000_000
BOM = b"\xef\xbb\xbf"


@pytest.fixture(autouse=True, scope="module")
def small_files() -> Iterator[None]:
    """Let a few bytes be a mark apart, and let small files have an index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "EVERY", 16)
        patch.setattr(row_index, "_SMALL", 0)
        patch.setattr(row_index, "_KEPT_EVERY", 48)
        patch.setattr(csv, "_CHUNK", 7)
        yield


def write(folder: Path, files: Sequence[bytes], suffix: str) -> list[str]:
    """Write files that nobody has changed for a long time."""
    found = []
    for number, content in enumerate(files):
        path = folder / f"{number}{suffix}"
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
        found.append(str(path))
    return found


class Settled(KeptIndexes):
    """Indexes that are kept though the file has only just got its time."""

    def keep(self, path: str, index: FileIndex) -> None:
        """Keep, as two seconds later."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_index, "_RACY_NS", -(10**18))
            super().keep(path, index)


READ: dict[str, Any] = {"csv": csv.read_rows, "jsonl": jsonl.read_rows, "text": text.read_rows}


def all_rows(kind: str, paths: Sequence[str], folder: Path, start: int, indexes: KeptIndexes | None) -> list[Any]:
    """Return what a reader that begins at a row gives: values or what is wrong, with places."""
    names = {"csv": ("a", "b"), "jsonl": ("a",), "text": ("text",)}[kind]
    wanted = Wanted(dtypes={}, keys=(*names, "path", "row"), missing=dict.fromkeys(names, "?"), indexes=indexes)
    found: list[Any] = []
    with open_input(kind, paths, str(folder), wanted) as source:
        for block in source.blocks(start, repeat(3)):
            values = zip(*(block.columns[name] for name in wanted.keys), strict=True)
            found += zip(block.rows, block.places, map(tuple, values), strict=True)
            found += [(one.row, one.source, one.code, one.message) for one in block.failed]
    return sorted(found, key=lambda one: one[0])


CELL = st.sampled_from(["", "x", "é", '"q"', '"a\nb"', '"a\r\nb"', '"a""b"', '"', 'x"y', "long " * 5, "\udcff", "\r"])
CSV_LINE = st.lists(CELL, min_size=1, max_size=3).map(",".join)
JSON_LINE = st.sampled_from(['{"a": 1}', '{"a": "é"}', "{", "", "  ", '{"a": [1, 2, 3, 4, 5, 6, 7]}', "3", "\udcff"])
TEXT_LINE = st.sampled_from(["", "a", "é", "\udcff", "longer than a mark is apart", "\r", "\0"])
END = st.sampled_from(["\n", "\r\n"])


def bodies(line: st.SearchStrategy[str], ends: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Return contents of lines with ends of any kind, the last perhaps without one."""
    lines = st.lists(st.tuples(line, ends).map("".join), max_size=9)
    return st.tuples(lines.map("".join), line).map(lambda both: "".join(both).encode(errors="surrogateescape"))


HEADER = st.sampled_from([b"a,b\n", b"a,b\r\n", b'a,"b"\r'])
CSV_FILE = st.tuples(st.sampled_from([b"", BOM]), HEADER, bodies(CSV_LINE, END | st.just("\r"))).map(b"".join)
JSON_FILE = st.tuples(st.sampled_from([b"", BOM]), bodies(JSON_LINE, END)).map(b"".join)
TEXT_FILE = st.tuples(st.sampled_from([b"", BOM]), bodies(TEXT_LINE, END)).map(b"".join)
FILES = st.one_of(
    st.tuples(st.just("csv"), st.lists(CSV_FILE, min_size=1, max_size=3)),
    st.tuples(st.just("jsonl"), st.lists(JSON_FILE, min_size=1, max_size=3)),
    st.tuples(st.just("text"), st.lists(TEXT_FILE, min_size=1, max_size=3)),
)


@given(files=FILES, data=st.data(), packed=st.sampled_from(["", "", ".gz"]))
def test_reading_from_any_row_is_reading_from_the_start_and_skipping(
    tmp_path_factory: pytest.TempPathFactory, files: tuple[str, list[bytes]], data: st.DataObject, packed: str
) -> None:
    kind, contents = files
    folder = tmp_path_factory.mktemp("rows")
    paths = write(folder, contents, {"csv": ".csv", "jsonl": ".jsonl", "text": ".txt"}[kind] + packed)
    whole = all_rows(kind, paths, folder, 0, None)
    assert [one[0] for one in whole] == list(range(len(whole)))
    indexes = Settled(folder / "state", str(folder), kind)
    for _ in range(3):  # of nothing known, of what the reads before have noted, and of all
        start = data.draw(st.integers(0, len(whole)))
        assert all_rows(kind, paths, folder, start, indexes) == whole[start:]
    read = data.draw(st.sampled_from([READ[kind]]))
    count = count_rows(paths, partial(read, folder=str(folder), wanted=Wanted(dtypes={})), indexes)
    assert count == len(whole) == known_rows(paths, indexes)
    for start in range(len(whole) + 1):
        assert all_rows(kind, paths, folder, start, indexes) == whole[start:]


LINES = b"".join(b'{"a": %d}\n' % number for number in range(100))


def indexed(folder: Path, content: bytes = LINES) -> tuple[str, Settled]:
    """Return a file of JSON lines whose index is made."""
    (path,) = write(folder, [content], ".jsonl")
    indexes = Settled(folder / "state", str(folder), "jsonl")
    all_rows("jsonl", [path], folder, 0, indexes)
    return path, indexes


def test_what_comes_before_a_row_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, indexes = indexed(tmp_path)
    begun = []
    real = jsonl.read_rows

    def watched(path: str, mark: row_index.Mark, **more: Any) -> Iterator[Any]:
        begun.append(mark)
        return real(path, mark, **more)

    monkeypatch.setattr(jsonl, "read_rows", watched)
    assert [row for row, *_ in all_rows("jsonl", [path], tmp_path, 97, indexes)] == [97, 98, 99]
    assert all_rows("jsonl", [path, path], tmp_path, 150, indexes)[0][0] == 150
    assert [mark.row for mark in begun] == [96, 50]


def test_a_reader_that_is_stopped_leaves_what_it_has_seen(tmp_path: Path) -> None:
    (path,) = write(tmp_path, [LINES], ".jsonl")
    indexes = Settled(tmp_path / "state", str(tmp_path), "jsonl")
    wanted = Wanted(dtypes={}, keys=("a",), indexes=indexes)
    with open_input("jsonl", [path], str(tmp_path), wanted) as source:
        blocks = source.blocks(0, repeat(30))
        next(blocks)
        del blocks
    known = indexes.of(path)
    assert known.rows is None
    assert 20 < known.before(29).row <= 29
    assert known.before(0) == START


@pytest.mark.parametrize("change", ["size", "time", "bytes", "index", "seal", "other kind"])
def test_what_is_known_of_another_content_counts_for_nothing(tmp_path: Path, change: str) -> None:
    path, indexes = indexed(tmp_path)
    assert indexes.of(path).rows == 100
    (kept,) = memo_files(tmp_path / "state", "rows")
    match change:
        case "size":
            Path(path).write_bytes(LINES[:-1])
            os.utime(path, ns=(LONG_AGO, LONG_AGO))
        case "time":
            os.utime(path, ns=(LONG_AGO + 1, LONG_AGO + 1))
        case "bytes":
            Path(path).write_bytes(LINES.replace(b'{"a": 7}\n{', b'{"a":  7}{'))
            os.utime(path, ns=(LONG_AGO, LONG_AGO))
        case "index":
            kept.write_bytes(kept.read_bytes()[:-9])
        case "seal":
            kept.write_bytes(kept.read_bytes().replace(b'"rows": 100', b'"rows": 101'))
        case _:
            indexes = Settled(tmp_path / "state", str(tmp_path), "csv")
    assert indexes.of(path) == row_index.UNKNOWN


def test_a_file_that_was_changed_just_now_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    indexes = KeptIndexes(tmp_path / "state", str(tmp_path), "jsonl")
    assert len(all_rows("jsonl", [str(tmp_path / "a.jsonl")], tmp_path, 0, indexes)) == 100
    assert indexes.of(str(tmp_path / "a.jsonl")).rows is None


@pytest.mark.parametrize(
    ("told", "words"), [(4, "has 3 rows"), (2, "has more than 2 rows"), (1, "has more than 1 rows")]
)
def test_a_file_that_has_other_rows_than_its_index_says_is_refused(tmp_path: Path, told: int, words: str) -> None:
    """Also by a reader that wants no more rows than the index says."""
    (path,) = write(tmp_path, [b"a\nb\nc\n"], ".txt")
    indexes = Settled(tmp_path, str(tmp_path), "text")
    indexes.of(path)
    indexes.keep(path, FileIndex(rows=told))
    wanted = Wanted(dtypes={}, keys=("text",), indexes=indexes)
    with (
        open_input("text", [path], str(tmp_path), wanted) as source,
        pytest.raises(OrtdeployError, match=f"{words}, and its index says {told}"),
    ):
        list(source.blocks(0, [told]))
    assert indexes.of(path) == row_index.UNKNOWN, "the next plan would believe it again"


def test_what_a_saved_plan_tells_is_not_kept_as_what_was_seen(tmp_path: Path) -> None:
    path, _ = indexed(tmp_path)
    shard = Settled(tmp_path / "other", str(tmp_path), "jsonl", told=True)
    shard.tell(path, (len(LINES), LONG_AGO), FileIndex(rows=100))
    assert len(all_rows("jsonl", [path], tmp_path, 0, shard)) == 100
    assert Settled(tmp_path / "other", str(tmp_path), "jsonl").of(path) == row_index.UNKNOWN


Lie = tuple[str, int, int]
LIES = st.tuples(
    st.sampled_from(["row", "line", "offset", "place", "rows", "none"]), st.integers(0, 9), st.integers(1, 3)
)


def lied(true: FileIndex, lie: Lie) -> FileIndex | None:
    """Return an index that says something else of a file; None if no plan file could say it."""
    what, which, by = lie
    marks, rows = list(true.marks), true.rows or 0
    if what == "rows":
        rows = max(0, rows + (by if which % 2 else -by))
    elif what == "none":
        marks, rows = [], 0
    elif marks:
        one, other = marks[which % len(marks)], marks[(which + by) % len(marks)]
        moved = {"row": one._replace(row=one.row + by), "line": one._replace(line=one.line + by)}
        moved |= {"offset": one._replace(offset=one.offset + by), "place": other._replace(row=one.row)}
        marks[marks.index(one)] = moved[what]
    try:
        found = row_index.as_index(rows, marks)
    except ValueError:
        return None
    return FileIndex(marks=found.marks, rows=found.rows, is_told=True)


class Told(row_index.NoIndexes):
    """What a saved plan says of files."""

    def __init__(self, known: dict[str, FileIndex]) -> None:
        self.known = known

    def of(self, path: str) -> FileIndex:
        """Return it."""
        return self.known[path]


@given(files=FILES, lie=LIES, which=st.integers(0, 2), of_a_part=st.integers(1, 6), packed=st.sampled_from(["", ".gz"]))
def test_a_lie_of_a_saved_plan_about_any_place_is_found_by_the_shard_that_reads_there(
    tmp_path_factory: pytest.TempPathFactory,
    files: tuple[str, list[bytes]],
    lie: Lie,
    which: int,
    of_a_part: int,
    packed: str,
) -> None:
    """Whatever the parts are: either each row is in one of them, or one of them fails."""
    kind, contents = files
    folder = tmp_path_factory.mktemp("rows")
    paths = write(folder, contents, {"csv": ".csv", "jsonl": ".jsonl", "text": ".txt"}[kind] + packed)
    whole = all_rows(kind, paths, folder, 0, None)
    indexes = Settled(folder / "state", str(folder), kind)
    assert all_rows(kind, paths, folder, 0, indexes) == whole
    known = {path: replace(indexes.of(path), is_told=True) for path in paths}
    path = paths[which % len(paths)]
    false = lied(known[path], lie)
    assume(false is not None and false != known[path])
    told = Told({**known, path: false})  # type: ignore[dict-item]
    found: list[Any] = []
    try:
        read = partial(READ[kind], folder=str(folder), wanted=Wanted(dtypes={}))
        total = count_rows(paths, read, told)
        for start in range(0, total, of_a_part):
            found += part_of(kind, paths, folder, range(start, min(start + of_a_part, total)), told)
    except OrtdeployError as error:
        assert "make the plan again" in str(error)  # noqa: PT017  the other end is all rows
    else:
        assert found == whole


def part_of(kind: str, paths: Sequence[str], folder: Path, rows: range, told: Told) -> list[Any]:
    """Return what a shard reads for a part."""
    names = {"csv": ("a", "b"), "jsonl": ("a",), "text": ("text",)}[kind]
    wanted = Wanted(dtypes={}, keys=(*names, "path", "row"), missing=dict.fromkeys(names, "?"), indexes=told, only=rows)
    found: list[Any] = []
    with open_input(kind, paths, str(folder), wanted) as source:
        for block in source.blocks(rows.start, repeat(4)):
            values = zip(*(block.columns[name] for name in wanted.keys), strict=True)
            found += zip(block.rows, block.places, map(tuple, values), strict=True)
            found += [(one.row, one.source, one.code, one.message) for one in block.failed]
    return sorted(found, key=lambda one: one[0])


def test_a_place_behind_the_last_row_is_no_index_of_a_plan() -> None:
    """A job that ends with that row would not read on, and so would not see that the file does."""
    with pytest.raises(ValueError, match="behind the last row"):
        row_index.as_index(2, [(2, 2, 18, 0)])
    assert row_index.as_index(3, [(2, 2, 18, 0)]).rows == 3
