"""Records of CSV: where one begins and ends, what a broken one costs, and what is none."""

import json
import shutil
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, Result, read_rows
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import save_model
from support.table_model import csv_records

from ortdeploy.facts.data import Dialect
from ortdeploy.sources import row_index
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted

Row = tuple[str, int]
"""A row as a reader finds it: its cells as JSON, or that it has failed; and the line where it begins."""


def found(path: Path, names: Sequence[str], dialect: Dialect) -> list[Row]:
    """Return the rows of a file in order."""
    wanted = Wanted(dtypes={}, keys=tuple(names), dialect=dialect)
    rows: dict[int, Row] = {}
    with open_input("csv", [str(path)], str(path.parent), wanted) as source:
        for block in source.blocks(0, repeat(7)):
            cells = zip(*(block.columns[name] for name in names), strict=True)
            good = zip(block.rows, map(json.dumps, map(list, cells)), block.places, strict=True)
            rows |= {row: (text, int(place.split(":")[-1])) for row, text, place in good}
            rows |= {one.row: ("failed", int(one.source.split(":")[-1])) for one in block.failed}
    assert sorted(rows) == list(range(len(rows)))
    return [rows[row] for row in sorted(rows)]


def expected(content: bytes, width: int, dialect: Dialect) -> list[Row]:
    """Return the rows of a file by the model, which tries each number of lines that a record may have."""
    found = []
    for cells, line in csv_records(content, *dialect.records)[1:]:
        is_whole = cells is not None and len(cells) == width
        found.append((json.dumps(cells) if is_whole else "failed", line))
    return found


CELL = st.sampled_from(
    ["", "x", "é", '"q"', '"a\nb"', '"a\r\nb"', '"a""b"', '"', 'x"y', '"z"z', "1", " ", '"a,b"', "\0", "\udcff"]
)
LINE = st.lists(CELL, min_size=1, max_size=3).map(",".join) | st.sampled_from(["", "  ", '""'])
FILE = st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n", "\r"])).map("".join), max_size=12).map("".join)


@given(
    body=FILE,
    width=st.integers(1, 3),
    most=st.integers(1, 5) | st.none(),
    end=LINE,
    delimiter=st.sampled_from([",", ";", "\t"]),
)
def test_records_are_what_trying_each_number_of_lines_finds(
    tmp_path_factory: pytest.TempPathFactory, body: str, width: int, most: int | None, end: str, delimiter: str
) -> None:
    dialect = Dialect(delimiter=delimiter, lines_per_record=most)
    names = [f"c{number}" for number in range(width)]
    text = (",".join(names) + "\n" + body + end).replace(",", delimiter)
    path = tmp_path_factory.mktemp("records") / "a.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert found(path, names, dialect) == expected(path.read_bytes(), width, dialect)


MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: {path}, key: [name]{more}}}
    errors: {{max_failed: {failed}}}
    output: {{path: out}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kind: tuple[int, list[int | str | None]] = (TensorProto.FLOAT, ["batch"])
    save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    return tmp_path


def apply(cli: Cli, folder: Path, content: str, *, failed: int = 0, more: str = "", path: str = "a.csv") -> Result:
    """Run the numbers of a table with the columns x and name."""
    (folder / path).write_bytes(content.encode())
    (folder / "m.yaml").write_text(MANIFEST.format(path=path, failed=failed, more=more and f", {more}"))
    return cli("apply", folder / "m.yaml")


def numbers(folder: Path) -> list[float]:
    return [row["y"] for row in read_rows(folder / "out")]


def failures(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out/_failed.jsonl").read_text().splitlines()]


def counts(folder: Path) -> tuple[int, int, int, int]:
    rows = json.loads((folder / "out/_run.json").read_text())["rows"]
    return rows["input"], rows["committed"], rows["failed"], rows["skipped"]


def table(rows: int, **instead: str) -> str:
    """Return a table whose row N is N and its name, with other lines instead of some: `row_N`."""
    lines = [instead.get(f"row_{row}", f"{row},name {row}") for row in range(rows)]
    return "\n".join(["x,name", *lines, ""])


def test_a_quote_that_is_never_closed_costs_its_line(cli: Cli, folder: Path) -> None:
    """Also where others follow, one within the lines that the first may take, and where the file ends first."""
    rows = {10: '10,"name', 30: '30,"name', 500: '"500,name', 998: '998,"name'}
    result = apply(cli, folder, table(1000, **{f"row_{row}": line for row, line in rows.items()}), failed=4)
    assert result.code == 0, result.out
    assert numbers(folder) == [row for row in range(1000) if row not in rows]
    assert counts(folder) == (1000, 996, 4, 0)
    found = failures(folder)
    assert [(one["row"], one["source"], one["code"]) for one in found] == [
        (row, f"a.csv:{row + 2}", "not-csv") for row in rows
    ]
    assert "in line 32. The lines behind this one are read as rows of their own" in found[0]["message"]
    assert "is not closed within 100 lines, the most that a record may have (lines_per_record)" in found[1]["message"]
    assert "is not closed by the end of the file, 1 lines on" in found[3]["message"]
    assert apply(cli, folder, table(1000, row_10=rows[10], row_500=rows[500]), failed=1, more="on_change: append").code


def test_two_quotes_that_close_each_other_make_no_record_of_rows(cli: Cli, folder: Path) -> None:
    """Such a record is whole for csv, so its rows would be gone; unless the manifest says that records are long."""
    content = table(60, row_10='10,"name', row_40='40,name"')
    assert apply(cli, folder, content, failed=1).code == 0
    assert numbers(folder) == [row for row in range(60) if row != 10]
    (one,) = failures(folder)
    assert "makes one record of 31, of which each looks like a row" in one["message"]
    assert apply(cli, folder, content, more="lines_per_record: 100", path="b.csv").code == 1
    assert cli("apply", folder / "m.yaml", "--new-run").code == 0
    assert len(numbers(folder)) == 30
    lines = 'x,name\n1,"Dear all,\nthank you, and more"\n2,"one,\ntwo,\nthree"\n'
    assert apply(cli, folder, lines, path="c.csv").code == 1
    assert cli("apply", folder / "m.yaml", "--new-run").code == 0
    assert len(numbers(folder)) == 2


def test_a_record_may_have_as_many_lines_as_the_manifest_allows(cli: Cli, folder: Path) -> None:
    long, text = 'x,name\n1,"a' + "\n" * 150 + '"\n2,b\n', "a" + "\n" * 150
    assert apply(cli, folder, long, failed=1).code == 1
    result = apply(cli, folder, long, more="lines_per_record: 151")
    assert result.code == 0, result.out
    assert [(row["y"], row["name"]) for row in read_rows(folder / "out")] == [(1, text), (2, "b")]
    refused = apply(cli, folder, long, more="lines_per_record: 152")
    assert "columns" in refused.words, "results depend on where records begin"


@pytest.mark.slow
def test_a_file_that_is_cut_off_fails_with_its_last_line(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, 'x,name\n1,a\n2,"b\n3,c\n4,"d', failed=2).code == 0
    assert numbers(folder) == [1, 3]
    assert [one["source"] for one in failures(folder)] == ["a.csv:3", "a.csv:5"]
    assert failures(folder)[1]["message"].endswith("is not closed by the end of the file")


@pytest.mark.quick("crlf")
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_a_blank_line_is_no_row(cli: Cli, folder: Path, end: str) -> None:
    content = end.join(["", "x,name", "", "1,a", "   ", "2,b", "", "", " "])
    assert apply(cli, folder, content).code == 0
    assert (numbers(folder), counts(folder)) == ([1, 2], (2, 2, 0, 0))


def test_shards_number_the_rows_as_one_machine_does(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count and find rows by an index, in a file with broken records, long ones and blank lines."""
    monkeypatch.setattr(row_index, "EVERY", 64)
    monkeypatch.setattr(row_index, "_SMALL", 0)
    monkeypatch.setattr(row_index, "_RACY_NS", -(10**18))
    lines = {
        "row_3": '3,"never',
        "row_9": '9,"two\nlines"',
        "row_20": "\n \n20,x",
        "row_41": '41,"x"y\n\n',
        "row_59": '59,"',
    }
    content = table(60, **lines)
    manifest = MANIFEST.replace("path: out", "path: out, rows_per_part: 7").replace("key: [name]", "key: [name, row]")
    (folder / "a.csv").write_text(content)
    (folder / "m.yaml").write_text(manifest.format(path="a.csv", failed=3, more=""))
    alone = Path(shutil.copytree(folder, folder.parent / f"{folder.name}-alone"))
    assert cli("apply", alone / "m.yaml").code == 0
    planned = cli("plan", folder / "m.yaml", "--out", folder / "plan.json")
    assert (planned.code, "60 rows" in planned.out) == (0, True)
    for shard in (2, 0, 1):
        assert cli("apply", folder / "plan.json", "--shard", f"{shard}/3").code == 0
    assert cli("finish", folder / "plan.json").code == 0
    assert read_rows(folder / "out") == read_rows(alone / "out")
    assert counts(folder) == counts(alone) == (60, 57, 3, 0)
    assert [one["source"] for one in failures(folder)] == [one["source"] for one in failures(alone)]


@pytest.mark.slow
def test_rows_of_a_repaired_file_run_again_by_their_number(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, table(300, row_10='10,"name', row_299='299,"'), failed=2).code == 0
    assert apply(cli, folder, table(300), failed=2, more="").code == 1
    result = cli("retry", folder / "m.yaml", "--job", "run")
    assert result.code == 0, result.out
    assert sorted(numbers(folder)) == list(range(300))


@pytest.mark.quick("tab")
@pytest.mark.parametrize(
    ("delimiter", "written"), [(";", '";"'), ("\t", r'"\t"'), ("|", '"|"')], ids=["semicolon", "tab", "bar"]
)
def test_another_delimiter_is_proposed_and_taken(cli: Cli, folder: Path, delimiter: str, written: str) -> None:
    content = table(3).replace(",", delimiter)
    refused = apply(cli, folder, content)
    assert (refused.code, f"write delimiter: {written}" in refused.words) == (1, True)
    assert apply(cli, folder, content, more=f"delimiter: {written}").code == 0
    assert numbers(folder) == [0, 1, 2]
    assert (
        "delimiter: is for tables (csv)"
        in apply(cli, folder, '{"x": 1, "name": 1}', more='delimiter: ";"', path="a.jsonl").words
    )


def test_cells_that_the_manifest_names_are_empty(cli: Cli, folder: Path) -> None:
    content = "x,name\n1,a\nNA,b\n - ,null\n4,nullable\n-4,d\n"
    empty = 'empty: [NA, "null", "-"]'
    assert apply(cli, folder, content, failed=2, more=empty).code == 0
    assert [(row["y"], row["name"]) for row in read_rows(folder / "out")] == [(1, "a"), (4, "nullable"), (-4, "d")]
    assert [one["code"] for one in failures(folder)] == ["empty-value"] * 2
    assert "columns" in apply(cli, folder, content, more=f"{empty}, missing: {{x: 0}}").words
    assert apply(cli, folder, content, more=f"{empty}, missing: {{x: 0}}", path="b.csv").code == 1, "another result"
    assert cli("apply", folder / "m.yaml", "--new-run").code == 0
    assert [(row["y"], row["name"]) for row in read_rows(folder / "out")] == [
        (1, "a"), (0, "b"), (0, ""), (4, "nullable"), (-4, "d"),
    ]  # fmt: skip


def test_a_column_that_is_there_twice_is_wrong_only_if_it_is_used(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, "u,x,name,u\n1,2,a,3\n").code == 0
    assert numbers(folder) == [2]
    for used in ("x", "name"):
        refused = apply(cli, folder, f"u,x,name,{used}\n1,2,a,3\n", path=f"{used}.csv")
        assert f'The data has the column "{used}" twice' in refused.words
    matched = apply(cli, folder, "f1,x,name,f1\n1,2,a,3\n", more="columns: {x: [f*]}", path="f.csv")
    assert 'The data has the column "f1" twice' in matched.words


def test_a_name_that_ends_in_a_space_can_be_seen(cli: Cli, folder: Path) -> None:
    assert '" name "' in apply(cli, folder, "x, name ,z,u\n1,2,3,4\n", more="columns: {x: wrong}").words


def test_a_line_with_nul_bytes_fails(cli: Cli, folder: Path) -> None:
    """As a file has them that was written when power failed."""
    assert apply(cli, folder, "x,name\n1,a\n" + "\0" * 20 + "2,b\n3,\0\n4,d\n", failed=2).code == 0
    assert numbers(folder) == [1, 4]
    assert ["NUL bytes" in one["message"] for one in failures(folder)] == [True, True]
