"""`status` says that the last apply was refused: without that, it would show the good end of the run before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli

from ortdeploy.cli.commands import status
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.planning import refused_applies
from ortdeploy.planning.remembered import nothing_to_do
from ortdeploy.runtime.session import OrtRuntime, OrtSession


@pytest.fixture
def done(cli: Cli, deployment: Path) -> Path:
    """A manifest whose job is done."""
    manifest = deployment / "m.yaml"
    assert cli("apply", manifest).code == 0
    return manifest


def refused(cli: Cli, manifest: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli("status", manifest, "--format", "json").json["refused"]
    return found


@pytest.mark.slow
def test_a_refused_apply_is_told_until_one_is_not_refused(cli: Cli, done: Path) -> None:
    model = done.parent / "double.onnx"
    assert refused(cli, done) == []
    assert "apply has failed since" not in cli("status", done).words
    content = model.read_bytes()
    model.unlink()
    assert cli("apply", done).code == 1
    (first,) = refused(cli, done)
    assert (first["manifest"], first["good"]) == (str(done), None)
    assert "double.onnx" in first["reason"]
    words = cli("status", done).words
    assert f"apply has failed since {first['since']} ({first['reason'].rstrip('.')})" in words
    assert "done" in words
    assert "apply has failed since" in cli("status", done, "-q").words
    assert cli("apply", done).code == 1
    assert refused(cli, done) == [first], "since the first one"
    model.write_bytes(content)
    for _ in range(2):
        assert cli("apply", done).code == 0
        assert refused(cli, done) == []
        assert "apply has failed since" not in cli("status", done).words


@pytest.mark.slow
def test_what_was_remembered_before_it_does_not_hide_it(cli: Cli, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file has changed since apply and status were remembered: the refused apply was another command line."""
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**12))
    for _ in range(2):
        assert cli("apply", done).code == 0
        assert cli("status", done).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(status, "_show", None)
        assert cli("status", done).code == 0, "it is remembered"
    assert cli("apply", done, "--set", "models.double.path=gone.onnx").code == 1
    assert "apply has failed since" in cli("status", done).words
    assert cli("apply", done).code == 0
    assert "apply has failed since" not in cli("status", done).words
    assert refused(cli, done) == []


def test_where_nothing_has_run_only_the_status_document_is_written(cli: Cli, deployment: Path) -> None:
    (deployment / "double.onnx").unlink()
    before = sorted(deployment.rglob("*"))
    assert cli("apply", deployment / "m.yaml").code == 1
    (document,) = (deployment / ".ortdeploy/status").iterdir()
    assert sorted(deployment.rglob("*")) == sorted([*before, *document.parents[:2], document])


@pytest.mark.slow
def test_of_several_manifests_the_refused_one_is_named(cli: Cli, done: Path) -> None:
    other = done.with_name("other.yaml")
    other.write_text(done.read_text().replace("name: ", "name: other-").replace("double.onnx", "gone.onnx"))
    assert cli("apply", done.parent).code == 1
    assert [one["manifest"] for one in refused(cli, done.parent)] == [str(other)]
    assert cli("cache", "prune", done).code == 0
    assert len(refused(cli, done.parent)) == 1
    other.unlink()
    assert cli("cache", "prune", done).code == 0
    assert not list((done.parent / ".ortdeploy/told").glob("*.refused"))


def test_nothing_is_forgotten_where_nothing_is_noted(cli: Cli, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To forget, the whole state folder is looked through for links that lead out of it."""
    monkeypatch.setattr(refused_applies, "forget_refusal", None)
    assert cli("apply", done).code == 0


@pytest.mark.slow
def test_a_job_that_failed_before_it_began_is_told_until_one_succeeds(
    cli: Cli, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger knows only how the run before ended."""
    np.save(done.with_name("more.npy"), np.ones((4, 4), np.float32))
    done.write_text(done.read_text().replace("data.npy", "'*.npy'"))
    (before,) = cli("status", done, "--format", "json").json["jobs"]

    def no_session(*_: object) -> None:
        raise OrtdeployError("the device is busy")

    with monkeypatch.context() as patch:
        patch.setattr(OrtRuntime, "open_session", no_session)
        assert cli("apply", done).code == 1
    assert cli("status", done, "--format", "json").json["jobs"] == [before]
    (told,) = refused(cli, done)
    assert told["reason"] == f"job {before['job']}: the device is busy"
    assert cli("apply", done).code == 0
    assert refused(cli, done) == []


@pytest.mark.slow
def test_a_job_that_failed_while_it_ran_is_told_by_its_state(
    cli: Cli, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(done.with_name("more.npy"), np.ones((4, 4), np.float32))
    done.write_text(done.read_text().replace("data.npy", "'*.npy'"))

    def no_result(*_: object) -> None:
        raise OrtdeployError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(OrtSession, "run", no_result)
        assert cli("apply", done).code == 1
    (job,) = cli("status", done, "--format", "json").json["jobs"]
    assert job["status"] == "failed"
    assert refused(cli, done) == []
