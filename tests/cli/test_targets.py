"""Flags that name a file to write: they replace what they have written, and nothing else."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import Cli

_COMMANDS = {
    "--out": ["plan", "m.yaml", "--out"],
    "--log-file": ["plan", "m.yaml", "--log-file"],
    "--output": ["device", "-o"],
    "--report": ["diff", "outbox/run/_run.json", "outbox/run/_run.json", "--report"],
}
_ALL = pytest.mark.parametrize(("flag", "command"), _COMMANDS.items())


@pytest.fixture
def applied(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(deployment)
    assert cli("apply", "m.yaml").code == 0
    return deployment


@_ALL
def test_no_flag_writes_over_what_is_something_else(cli: Cli, applied: Path, flag: str, command: Sequence[str]) -> None:
    others = ["m.yaml", "double.onnx", "data.npy", "outbox/run/part-00000000.jsonl", ".ortdeploy/state.db"]
    for other in others:
        before = (applied / other).read_bytes()
        refused = cli(*command, other)
        assert refused.code == 64, other
        assert f"{flag}: {other} is there already" in refused.err
        assert (applied / other).read_bytes() == before


@_ALL
def test_a_flag_writes_over_what_it_has_written(cli: Cli, applied: Path, flag: str, command: Sequence[str]) -> None:
    for _ in range(2):
        assert cli(*command, "target").code == 0, flag
    (applied / "target").write_bytes(b"")
    assert cli(*command, "target").code == 0, flag


@pytest.mark.usefixtures("applied")
@_ALL
@pytest.mark.parametrize("folder", [".", "..", "outbox/"])
def test_a_folder_is_no_file_to_write(cli: Cli, flag: str, command: Sequence[str], folder: str) -> None:
    refused = cli(*command, folder)
    assert refused.code == 64
    assert f"{flag}: {folder} is a folder" in refused.err


@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("color", ["always", "never"])
def test_logs_of_each_form_are_appended_to(cli: Cli, applied: Path, form: str, color: str) -> None:
    for runs in (1, 2):
        assert cli("plan", "m.yaml", "--log-file", "log", "--log-format", form, "--color", color).code == 0
        assert len((applied / "log").read_text().splitlines()) == runs
