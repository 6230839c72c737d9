"""Bundles by way of others' tools: a registry, skopeo, oras and the client of ModelPack; each where it is installed."""

import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.bundles import FILES, describe, write
from support.waiting import wait_for

from ortdeploy.bundles.description import NAME, dump, identity
from ortdeploy.bundles.layout import open_bundle

pytestmark = pytest.mark.skipif(
    not shutil.which("skopeo") or not shutil.which("docker-registry"), reason="needs skopeo and docker-registry"
)


def skopeo(*words: str) -> None:
    """Copy with skopeo."""
    subprocess.run(["skopeo", "copy", "-q", *words], check=True, timeout=120)  # noqa: S607


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry on this machine with a bundle of version 1, and the address of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    storage = f"storage: {{filesystem: {{rootdirectory: {tmp_path / 'registry'}}}}}"
    (tmp_path / "registry.yml").write_text(f"version: 0.1\n{storage}\nhttp: {{addr: '127.0.0.1:{port}'}}\n")
    with (tmp_path / "registry.log").open("wb") as log:
        server = subprocess.Popen(["docker-registry", "serve", str(tmp_path / "registry.yml")], stdout=log, stderr=log)  # noqa: S607
    try:
        wait_for(lambda: _answers(port))
        write(tmp_path / "digits")
        reference = f"127.0.0.1:{port}/line/digits:1"
        skopeo("--dest-tls-verify=false", f"oci:{tmp_path / 'digits'}:1", f"docker://{reference}")
        yield reference
    finally:
        server.terminate()
        server.wait(60)


@pytest.mark.parametrize("kind", ["oci", "oci-archive"])
def test_a_bundle_comes_back_from_a_registry_with_its_id(tmp_path: Path, registry: str, kind: str) -> None:
    back = tmp_path / ("back.tar" if kind == "oci-archive" else "back")
    skopeo("--src-tls-verify=false", f"docker://{registry}", f"{kind}:{back}:1")
    with open_bundle(back) as bundle, open_bundle(tmp_path / "digits") as before:
        assert (bundle.id, bundle.manifest_digest) == (identity(dump(describe())), before.manifest_digest)
        for file in bundle.description.files:
            with bundle.opened(file) as opened:
                assert opened.read() == FILES[file.name]


def _files(folder: Path) -> dict[str, bytes]:
    return {one.relative_to(folder).as_posix(): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def _script(module: str, text: str, *words: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")
    subprocess.run([sys.executable, "-c", text, *words], check=True, timeout=120)


_ORAS = """
import sys
from oras.client import OrasClient
OrasClient(hostname=sys.argv[1].partition("/")[0], insecure=True).pull(target=sys.argv[1], outdir=sys.argv[2])
"""
_MODELPACK = """
import sys
from modelpack_client.__main__ import main
sys.argv[1:1] = ["--insecure", "pull", "--no-unpack"]
sys.exit(main())
"""


@pytest.mark.parametrize(("module", "text"), [("oras", _ORAS), ("modelpack_client", _MODELPACK)])
def test_other_tools_find_the_files_under_their_names(tmp_path: Path, registry: str, module: str, text: str) -> None:
    _script(module, text, registry, str(tmp_path / "there"))
    assert _files(tmp_path / "there") == {**FILES, NAME: dump(describe())}
