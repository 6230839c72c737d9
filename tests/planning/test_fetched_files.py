"""Models and adapters by URL: fetched once, kept by their digest, refused if they are anything else."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MANIFEST, Cli, read_rows
from support.web import Server, running

from ortdeploy.files.content_store import ContentStore


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def by_url(deployment: Path, server: Server, digest: str | None = None) -> tuple[Path, str]:
    """Let the model of a deployment come from a server; return the manifest and the digest."""
    model = (deployment / "double.onnx").read_bytes()
    (deployment / "double.onnx").unlink()
    server.replies["/double.onnx"] = (200, {}, model)
    own = hashlib.sha256(model).hexdigest()
    text = MANIFEST.replace(
        "{path: double.onnx}", f'{{path: "{server.url("/double.onnx")}", sha256: "{digest or own}"}}'
    )
    (deployment / "m.yaml").write_text(text)
    return deployment / "m.yaml", own


def fetches(server: Server) -> list[str]:
    return [method for method, path, _ in server.asked if path == "/double.onnx"]


def test_a_model_is_fetched_once_a_machine(cli: Cli, deployment: Path, server: Server) -> None:
    manifest, digest = by_url(deployment, server)
    planned = cli("plan", manifest)
    assert planned.code == 0, planned.words
    assert ContentStore(deployment / ".ortdeploy").find(digest) is not None
    assert cli("apply", manifest).code == 0
    assert [row["y"][0] for row in read_rows(deployment / "outbox/run")] == [8.0 * row for row in range(20)]
    assert fetches(server) == ["GET"]
    server.replies.clear()
    assert "nothing to do" in cli("apply", manifest).out
    assert cli("cache", "prune", manifest).code == 0
    assert cli("lock", manifest, "--check").code in {0, 64}
    assert ContentStore(deployment / ".ortdeploy").find(digest) is not None
    assert fetches(server) == ["GET"]


def test_a_saved_plan_runs_where_the_model_is_fetched_anew(cli: Cli, deployment: Path, server: Server) -> None:
    manifest, _ = by_url(deployment, server)
    assert cli("plan", manifest, "--out", deployment / "plan.json").code == 0
    other = Path(
        shutil.copytree(deployment, deployment.with_name("other"), ignore=shutil.ignore_patterns(".ortdeploy"))
    )
    ran = cli("apply", other / "plan.json", "--shard", "0/1")
    assert ran.code == 0, ran.words
    assert cli("finish", other / "plan.json").code == 0
    assert len(read_rows(other / "outbox/run")) == 20
    assert fetches(server) == ["GET", "GET"]


def test_another_file_than_the_manifest_means_is_refused(cli: Cli, deployment: Path, server: Server) -> None:
    manifest, digest = by_url(deployment, server, "0" * 64)
    refused = cli("plan", manifest)
    assert refused.code == 1
    assert "m.yaml:4:18: error[unfetched-file]" in refused.words
    assert f"its SHA-256 is not {'0' * 64}" in refused.words
    assert ContentStore(deployment / ".ortdeploy").find(digest) is None


def test_a_server_without_it_is_named(cli: Cli, deployment: Path, server: Server) -> None:
    manifest, _ = by_url(deployment, server)
    server.replies.clear()
    refused = cli("plan", manifest)
    assert refused.code == 1
    assert "error[unfetched-file]" in refused.words
    assert "/double.onnx cannot be read: there is no such file" in refused.words


def test_a_damaged_copy_is_fetched_again(cli: Cli, deployment: Path, server: Server) -> None:
    manifest, digest = by_url(deployment, server)
    assert cli("plan", manifest).code == 0
    kept = ContentStore(deployment / ".ortdeploy").find(digest)
    assert kept is not None
    kept.chmod(0o600)
    kept.write_bytes(b"something else")
    assert cli("apply", manifest).code == 0
    assert fetches(server) == ["GET", "GET"]
