"""Rows that fail while they are read keep what is known of them; folders that cannot be read are named."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import Cli
from pyarrow import parquet
from support.models import scale_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.sources.files import list_files

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: {name}, columns: {{x: [a, b]}}, key: [id, row, path]}}
    output: {{path: out}}
    errors: {{max_failed: 100%}}
"""


GOOD_LINE = '{"a": 1, "b": 2, "id": "x", "row": "r6", "path": "o"}\n'


def write_table(path: Path) -> None:
    numbers = {"a": pa.array([1, None], pa.float32()), "b": pa.array([1, 2], pa.float32())}
    parquet.write_table(pa.table({**numbers, "id": ["x", "y"]}), path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "a,b,id\n1,2,x\n1,bad,y\n"),
        ("a.jsonl", '{"a": 1, "b": 2, "id": "x"}\n{"a": 1, "id": "y"}\n'),
        ("b.jsonl", '{"a": 1, "b": 2, "id": "x"}\n{"a": 1, "b": "bad", "id": "y"}\n'),
        ("a.parquet", None),
    ],
)
def test_a_row_that_cannot_be_read_has_its_keys(cli: Cli, tmp_path: Path, name: str, text: str | None) -> None:
    scale_model(tmp_path / "m.onnx", width=2)
    if text is None:
        write_table(tmp_path / name)
    else:
        (tmp_path / name).write_text(text)
    (tmp_path / "m.yaml").write_text(MANIFEST.format(name=name))
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    (line,) = (tmp_path / "out/_failed.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == {"id": "y", "row": 1, "path": name}


@pytest.mark.parametrize(
    ("name", "texts"),
    [("a.csv", ["1,2", "1,bad"]), ("a.jsonl", ['{"a": 1, "b": 2}', '{"a": 1, "b": "bad"}']), ("a.parquet", None)],
)
def test_a_row_that_cannot_be_read_has_its_keys_that_are_also_fed(
    cli: Cli, tmp_path: Path, name: str, texts: Sequence[str] | None
) -> None:
    scale_model(tmp_path / "m.onnx", width=2)
    if texts is None:
        numbers = {"a": pa.array([1, 1], pa.float32()), "b": pa.array([1, None], pa.float32())}
        parquet.write_table(pa.table(numbers), tmp_path / name)
    else:
        (tmp_path / name).write_text("".join(f"{one}\n" for one in (["a,b"] if name == "a.csv" else []) + list(texts)))
    (tmp_path / "m.yaml").write_text(MANIFEST.format(name=name).replace("[id, row, path]", "[a, row]"))
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    (line,) = (tmp_path / "out/_failed.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == {"a": "1" if name == "a.csv" else 1, "row": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "a,b,id,row,path\n1,bad,y,r7,p\n"),
        ("a.jsonl", GOOD_LINE + '{"a": 1, "id": "y", "row": "r7", "path": "p"}\n'),
        ("b.jsonl", GOOD_LINE + '{"a": 1, "b": "bad", "id": "y", "row": "r7", "path": "p"}\n'),
    ],
)
def test_columns_of_the_file_stand_for_the_rows_number_and_path(cli: Cli, tmp_path: Path, name: str, text: str) -> None:
    """As they do in the output."""
    scale_model(tmp_path / "m.onnx", width=2)
    (tmp_path / name).write_text(text)
    (tmp_path / "m.yaml").write_text(MANIFEST.format(name=name))
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    (line,) = (tmp_path / "out/_failed.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == {"id": "y", "row": "r7", "path": "p"}


@pytest.mark.parametrize("pattern", ["inbox/*.png", "inbox", "inbox/deep/a.png"])
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    (tmp_path / "inbox").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path / "inbox")
    with pytest.raises(OrtdeployError, match="inbox cannot be read by this user"):
        list_files(str(tmp_path), [pattern])


@pytest.mark.parametrize("pattern", ["inbox/*/*.npy", "inbox/**/*.npy", "*/?/a.npy", "inbox/[b]/*"])
def test_a_folder_that_a_glob_cannot_look_into_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for name in ("a", "b", "lost+found"):
        (tmp_path / "inbox" / name).mkdir(parents=True)
        (tmp_path / "inbox" / name / "a.npy").touch()
    closed = {str(tmp_path / "inbox/b"), str(tmp_path / "inbox/lost+found")}
    monkeypatch.setattr("ortdeploy.sources.files.os.access", lambda path, _mode: str(path) not in closed)
    with pytest.raises(OrtdeployError, match="inbox/b cannot be read by this user"):
        list_files(str(tmp_path), [pattern])
    closed.remove(str(tmp_path / "inbox/b"))
    assert list_files(str(tmp_path), [pattern])
