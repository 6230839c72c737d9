"""The lines that findings point at: as they are written, without secrets, and only of files."""

import os
from pathlib import Path

import pytest

from ortdeploy.cli.output.source_lines import SourceLines
from ortdeploy.diagnostics import Span
from ortdeploy.files.urls import MASK
from ortdeploy.providers.secrets import shown_line

TEXT = """\
models:
  m:
    path: m.onnx
    api_key: hunter2
    tokenizer: t.json
    password:
      hunter2
    secret: |
      hunter2
      more
    path2: x
    options: {device: GPU, 'auth_token': hunter2, other: 1}
    data: s3://user:hunter2@host/x
    description: >-
      the word password
      is no secret
"""


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (2, "    path: m.onnx"),
        (3, f"    api_key: {MASK}"),
        (4, "    tokenizer: t.json"),
        (5, "    password:"),
        (6, f"      {MASK}"),
        (8, f"      {MASK}"),
        (9, f"      {MASK}"),
        (10, "    path2: x"),
        (11, f"    options: {{device: GPU, 'auth_token': {MASK}"),
        (14, "      the word password"),
    ],
)
def test_what_follows_the_name_of_a_secret_is_masked(number: int, shown: str) -> None:
    assert shown_line(TEXT.splitlines(), number) == shown


def test_no_line_shows_a_secret() -> None:
    lines = TEXT.splitlines()
    assert not any("hunter2" in shown_line(lines, number) for number in range(len(lines)))


def test_a_line_of_a_million_characters_is_looked_through_once() -> None:
    long = "9" * 1_000_000
    assert shown_line([f"name: {long}"], 0) == f"name: {long}"
    assert shown_line([f"{long}token: {long}, password: hunter2"], 0) == f"{long}token: {MASK}"


def test_lines_are_counted_as_yaml_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes("\ufeffa: 1\r\nb: \xe9\u2028c: 3\rd".encode())
    line = SourceLines({})
    assert [line(Span(path=str(path), line=number, column=2)) for number in (1, 2, 3, 4, 5)] == [
        "a: 1", "b: é", "c: 3", "d", None,
    ]  # fmt: skip


def test_no_line_is_shown_where_carets_would_stand_below_something_else(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("input: {path: 's3://user:hunter2@host/x', fromat: npy}\n")
    line, path = SourceLines({}), str(tmp_path / "m.yaml")
    assert line(Span(path=path, line=1, column=9, end=13)) == "input: {path: 's3://host/x', fromat: npy}"
    assert line(Span(path=path, line=1, column=44, end=50)) is None


def test_places_without_a_line_have_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    line = SourceLines({})
    for path in (tmp_path, tmp_path / "gone", tmp_path / "pipe", "--set a\0b"):
        assert line(Span(path=str(path), line=1, column=2)) is None
    (tmp_path / "m.yaml").write_text("version: 1\n")
    assert line(Span(path=str(tmp_path / "m.yaml"), line=1, column=1)) is None  # all of the file
    assert line(Span(path=str(tmp_path / "m.yaml"), line=1, column=1, end=8)) == "version: 1"
