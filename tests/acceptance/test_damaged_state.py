"""Files of the state directory and of outputs that are no longer what was written: they are forgotten, not a bug."""

import json
from pathlib import Path

import pytest
from conftest import Cli
from support.models import scale_model

from ortdeploy.files.json_text import read_json

DAMAGED = {"too deep": "[" * 100_000, "a list": "[]", "null": "null", "cut": '{"a": {', "empty": ""}

MANIFEST = """\
version: 1
models: {m: {path: m.onnx}}
jobs:
  run: {model: m, input: {path: in/*.jsonl, on_change: append}, output: {path: out, format: jsonl}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_notes_are_forgotten(cli: Cli, tmp_path: Path, damage: str) -> None:
    scale_model(tmp_path / "m.onnx", width=1)
    (tmp_path / "m.yaml").write_text(MANIFEST)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"x": [1]}\n')
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    state = tmp_path / ".ortdeploy"
    notes = {path for path in (*state.rglob("*.json"), *state.glob("memo/*/*")) if path.is_file()}
    assert len([path for path in notes if "memo" in path.parts]) > 1
    for path in notes:
        path.write_text(DAMAGED[damage])
    (tmp_path / "in/b.jsonl").write_text('{"x": [2]}\n')
    for command in ("status", "plan", "apply"):
        done = cli(command, tmp_path / "m.yaml")
        assert done.code in {0, 2}, done.err
        assert "Traceback" not in done.err
    written = [
        json.loads(line) for part in sorted(tmp_path.glob("out/part-*")) for line in part.read_text().splitlines()
    ]
    assert [row["y"] for row in written] == [[2.0], [4.0]]


def test_json_that_is_nested_too_deeply_is_no_json() -> None:
    assert read_json(b'{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json("[" * 100_000)


def test_a_ledger_that_nobody_may_look_up_is_no_missing_one(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width=1)
    (tmp_path / "m.yaml").write_text(MANIFEST)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"x": [1]}\n')
    hidden = tmp_path / ("long" * 100)  # as for a folder of another user, whom root alone cannot be
    commands = [(name, str(tmp_path / "m.yaml")) for name in ("status", "plan", "apply", "verify", "diff")]
    again, backup = ("retry", str(tmp_path / "m.yaml"), "--job", "run"), ("state", "backup", str(tmp_path / "copy"))
    for command in (*commands, again, backup):
        done = cli(*command, "--state-dir", hidden)
        assert done.code == 1, (command, done.err)
        assert "state.db cannot be looked up: File name too long." in " ".join((done.out + done.err).split())
    assert not (tmp_path / "out").exists()


def test_a_state_directory_whose_path_is_too_long_for_sqlite_says_so(cli: Cli, tmp_path: Path) -> None:
    scale_model(tmp_path / "m.onnx", width=1)
    (tmp_path / "m.yaml").write_text(MANIFEST)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"x": [1]}\n')
    deep = tmp_path.joinpath(*["d" * 200] * 3)
    done = cli("apply", tmp_path / "m.yaml", "--state-dir", deep)
    assert (done.code, "has more than 504 bytes, which SQLite cannot open" in done.err) == (1, True), done.err
    width = 503 - len(bytes(tmp_path)) - len("/locks/0123456789abcdef.db")
    longest = tmp_path / ("d" * 200) / ("d" * (width - 201))
    assert cli("apply", tmp_path / "m.yaml", "--state-dir", longest).code == 0
