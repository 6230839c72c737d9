"""Outputs of a version that counted the rows of CSV otherwise: no row twice, none lost, or a refusal in words."""

import json
from pathlib import Path

import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import save_model

from ortdeploy.sources import csv

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  j:
    model: m
    input: {{path: d.csv, key: [row, k]}}
    output: {{path: out, rows_per_part: 2}}
    batch: {{size: 2}}
    errors: {{max_failed: {most}}}
"""
FIRST = [f"{number},n{number}" for number in range(70)]
"""More rows than planning looks at."""


def deploy(folder: Path, most: int) -> Path:
    (folder / "m.yaml").write_text(MANIFEST.format(most=most))
    return folder / "m.yaml"


def begin(folder: Path, lines: list[str]) -> None:
    rows: list[int | str | None] = ["batch"]
    kind = (TensorProto.FLOAT, rows)
    save_model(folder / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})
    (folder / "d.csv").write_text("".join(f"{line}\n" for line in ["x,k", *lines]))


def count_blank_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count rows as version 0.1.0 did."""
    monkeypatch.setattr(csv._Records, "_is_blank", lambda _records, _cells: False)  # noqa: SLF001


def written(folder: Path) -> list[str]:
    parts = sorted((folder / "out").glob("part-*"))
    return [json.loads(line)["k"] for part in parts for line in part.read_text().splitlines()]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_output_goes_on_only_if_its_rows_have_the_same_numbers(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    blank = [""] if is_there else []
    begin(tmp_path, [*blank, *FIRST, "bad,e", "bad,f", "bad,g", "1,h", "2,i"])
    with monkeypatch.context() as older:
        count_blank_lines(older)
        assert cli("apply", deploy(tmp_path, 2), "-q").code == 1
    before = written(tmp_path)
    assert before[:3] == ["n0", "n1", "n2"]
    done = cli("apply", deploy(tmp_path, 9), "-q")
    if is_there:
        assert done.code == 1
        assert "failed at d.csv:73, and is at d.csv:74 for this version, which counts the rows of CSV" in done.words
        assert written(tmp_path) == before
        done = cli("apply", tmp_path / "m.yaml", "-q", "--new-run")
    assert done.code == 0
    assert written(tmp_path) == [*(f"n{number}" for number in range(70)), "h", "i"]


def test_an_output_whose_last_broken_record_had_more_lines_does_not_go_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, [*FIRST, '1,"broken', 'record"x', "1,a", "bad,b", "bad,c", "1,d"])
    accept = csv._Records._accept  # noqa: SLF001
    with monkeypatch.context() as older:
        older.setattr(csv._Records, "_what_is_wrong", lambda _records, error: f"the line is not CSV: {error}")  # noqa: SLF001
        older.setattr(csv._Records, "_accept", lambda records, lines: accept(records, max(lines, len(records._taken))))  # noqa: SLF001
        assert cli("apply", deploy(tmp_path, 1), "-q").code == 1
    before = written(tmp_path)
    assert before == [*(f"n{number}" for number in range(70)), "a"]
    done = cli("apply", deploy(tmp_path, 9), "-q")
    assert done.code == 1
    assert "row 70 (d.csv:72) has other lines for this version, which counts the rows of CSV otherwise" in done.words
    assert written(tmp_path) == before


def test_a_retry_runs_no_other_row_than_the_one_that_failed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, ["1,a", "", "bad,b", "2,c"])
    with monkeypatch.context() as older:
        count_blank_lines(older)
        assert cli("apply", deploy(tmp_path, 9), "-q").code == 0
    before = (tmp_path / "out/_failed.jsonl").read_bytes()
    refused = cli("retry", tmp_path / "m.yaml", "--job", "j")
    assert refused.code == 1
    assert "row 1 failed at d.csv:3, and is at d.csv:4 for this version" in refused.words
    assert (written(tmp_path), (tmp_path / "out/_failed.jsonl").read_bytes()) == (["a", "c"], before)
