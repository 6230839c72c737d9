"""Models and adapters by URL: fetched once, kept by their digest, refused if they are anything else."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import onnx
import pytest
from conftest import MANIFEST, Cli, read_rows
from support.web import Reply, Server, running

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


@pytest.mark.slow
def test_a_damaged_copy_is_fetched_again(cli: Cli, deployment: Path, server: Server) -> None:
    manifest, digest = by_url(deployment, server)
    assert cli("plan", manifest).code == 0
    kept = ContentStore(deployment / ".ortdeploy").find(digest)
    assert kept is not None
    kept.chmod(0o600)
    kept.write_bytes(b"something else")
    assert cli("apply", manifest).code == 0
    assert fetches(server) == ["GET", "GET"]


def list_of(files: dict[str, bytes]) -> str:
    """What `sha256sum` prints of a model and the files beside it."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())


@pytest.fixture
def in_pieces(deployment: Path, server: Server) -> Path:
    """A model with external data on a server, pinned as a copy of it here would be."""
    model = onnx.load(deployment / "double.onnx")
    (deployment / "w").mkdir()
    onnx.save(model, deployment / "d.onnx", save_as_external_data=True, location="w/d.data", size_threshold=0)
    files = {name: (deployment / name).read_bytes() for name in ("d.onnx", "w/d.data")}
    local = deployment / "local.yaml"
    digest = hashlib.sha256(list_of(files).encode()).hexdigest()
    local.write_text(MANIFEST.replace("double.onnx", f"d.onnx, sha256: {digest}"))
    data = hashlib.sha256(files["w/d.data"]).hexdigest()
    there = f'"{server.url("/m/d.onnx")}", sha256: {digest}, external_data: {{w/d.data: {data}}}'
    (deployment / "m.yaml").write_text(MANIFEST.replace("double.onnx", there))
    server.replies |= {f"/m/{name}": (200, {}, content) for name, content in files.items()}
    return deployment / "m.yaml"


@pytest.mark.slow
def test_a_model_with_external_data_is_fetched_once_and_has_the_digest_of_a_copy_here(
    cli: Cli, in_pieces: Path, server: Server
) -> None:
    assert cli("plan", in_pieces.with_name("local.yaml")).code == 0
    for name in ("d.onnx", "w/d.data"):
        (in_pieces.parent / name).unlink()
    assert cli("apply", in_pieces).code == 0
    assert [row["y"][0] for row in read_rows(in_pieces.parent / "outbox/run")] == [8.0 * row for row in range(20)]
    server.replies.clear()
    assert cli("cache", "prune", in_pieces).code == 0
    assert "nothing to do" in cli("apply", in_pieces).out
    assert cli("apply", in_pieces, "--new-run").code == 0
    assert sorted(path for _, path, _ in server.asked) == ["/m/d.onnx", "/m/w/d.data"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("d.onnx", "d.onnx has the SHA-256"),
        ("w/d.data", "w/d.data is another file than the manifest means"),
        (None, "w/d.data cannot be read: there is no such file"),
    ],
)
def test_each_file_of_a_model_must_be_what_the_manifest_means(
    cli: Cli, in_pieces: Path, server: Server, name: str | None, words: str
) -> None:
    if name is None:
        del server.replies["/m/w/d.data"]
    else:
        status, headers, content = cast("Reply", server.replies[f"/m/{name}"])
        server.replies[f"/m/{name}"] = (status, headers, content[:-1] + b"?")
    refused = cli("plan", in_pieces)
    assert (refused.code, "error[unfetched-file]" in refused.words, words in refused.words) == (1, True, True)


def test_external_data_is_of_models_by_url_and_lies_beside_them(cli: Cli, in_pieces: Path) -> None:
    text = in_pieces.read_text()
    local = in_pieces.with_name("local.yaml")
    local.write_text(local.read_text().replace("d.onnx,", f"d.onnx, external_data: {{d.data: '{'0' * 64}'}},"))
    refused = cli("validate", local)
    assert (refused.code, "error[contradictory-option]" in refused.words) == (1, True), refused.words
    for name in ("../d.data", "/d.data", "w/../../d.data", "d.data?x=1", "s3://other/d.data", "w\\d", ".."):
        in_pieces.write_text(text.replace("{w/d.data:", f"{{'{name}':"))
        refused = cli("validate", in_pieces)
        assert (refused.code, "not of the form that is wanted" in refused.words) == (1, True), (name, refused.words)
