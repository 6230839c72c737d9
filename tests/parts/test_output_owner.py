"""An output folder names its ledger and its job, so that nobody else's results go into it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.fakes import FakeRuntime, double
from support.jobs import execute, plan_for, save

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.names import MARKER
from ortdeploy.ledger.opening import read_outputs
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.parts.output_owner import check_marker, write_marker


@pytest.fixture(name="known")
def with_output(tmp_path: Path) -> OutputRecord:
    save(tmp_path, range(8))
    execute(tmp_path, plan_for(tmp_path, 8), FakeRuntime(double))
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    return record


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / MARKER).read_text())
    return found


def test_its_own_job_and_one_that_was_renamed_go_on(tmp_path: Path, known: OutputRecord) -> None:
    for job in (known.job, "renamed"):
        check_marker(tmp_path / "out", tmp_path / ".ortdeploy", job, known)
    (tmp_path / "out" / MARKER).unlink()
    check_marker(tmp_path / "out", tmp_path / ".ortdeploy", "any", None)


def test_another_ledger_or_one_that_does_not_know_the_output_is_refused(tmp_path: Path, known: OutputRecord) -> None:
    with pytest.raises(OrtdeployError, match=r"which the ledger .* knows") as caught:
        check_marker(tmp_path / "out", tmp_path / "other", known.job, known)
    assert f'Give job "{known.job}" a folder of its own' in str(caught.value)
    with pytest.raises(OrtdeployError) as caught:
        check_marker(tmp_path / "out", tmp_path / ".ortdeploy", known.job, None)
    assert "which the ledger" not in str(caught.value)


def test_another_job_of_the_same_ledger_is_refused(tmp_path: Path, known: OutputRecord) -> None:
    (tmp_path / "out" / MARKER).unlink()
    write_marker(tmp_path / "out", tmp_path / ".ortdeploy", "d", "other")
    with pytest.raises(OrtdeployError, match='is the output of job "other"'):
        check_marker(tmp_path / "out", tmp_path / ".ortdeploy", known.job, known)


def test_a_claim_stays_and_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_marker(tmp_path / "out", tmp_path / ".ortdeploy", "d", "j")
    assert written(tmp_path) == {"format_version": 1, "ledger": "../.ortdeploy/state.db", "deployment": "d", "job": "j"}
    number = (tmp_path / "out" / MARKER).stat().st_ino
    write_marker(tmp_path / "out", tmp_path / ".ortdeploy", "d", "j")
    assert (tmp_path / "out" / MARKER).stat().st_ino == number
    write_marker(tmp_path / "out", tmp_path / ".ortdeploy", "d", "j", "mine")
    assert written(tmp_path)["claim"] == "mine"
    write_marker(tmp_path / "out", tmp_path / ".ortdeploy", "d", "renamed", "another's")
    assert (written(tmp_path)["claim"], written(tmp_path)["job"]) == ("mine", "renamed")
