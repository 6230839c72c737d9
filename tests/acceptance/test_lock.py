"""`ortdeploy lock`: digests written into the text, and nothing else of it changed."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.models import make_adapter, scale_model

from ortdeploy.files.digests import file_digest
from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.rewrite import set_beside

TEXT = """\
# our deployment
version: 1
models:
  first: {path: double.onnx}   # in braces
  second:
    path: double.onnx  # on lines
    session: {intra_op_num_threads: 1}
  third:
    sha256: "%s"   # an older one
    path: 'double.onnx'
  fourth: {"path": "double.onnx", sha256: %s, providers: [CPU]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scale_model(tmp_path / "double.onnx")
    (tmp_path / "m.yaml").write_text(TEXT % ("0" * 64, "b" * 64))
    return tmp_path


def test_digests_are_written_beside_paths_and_the_rest_stays(cli: Cli, folder: Path) -> None:
    path, digest = folder / "m.yaml", file_digest(folder / "double.onnx")
    path.chmod(0o640)
    assert cli("lock", path, "--check").code == 1
    assert path.read_text() == TEXT % ("0" * 64, "b" * 64)
    locked = cli("lock", path)
    assert locked.code == 0
    assert locked.out == f"{digest}  double.onnx  written\n" * 4
    assert (
        path.read_text()
        == f"""\
# our deployment
version: 1
models:
  first: {{path: double.onnx, sha256: {digest}}}   # in braces
  second:
    path: double.onnx  # on lines
    sha256: {digest}
    session: {{intra_op_num_threads: 1}}
  third:
    sha256: {digest}   # an older one
    path: 'double.onnx'
  fourth: {{"path": "double.onnx", sha256: {digest}, providers: [CPU]}}
"""
    )
    assert path.stat().st_mode & 0o777 == 0o640
    again = cli("lock", path)
    assert again.out == f"{digest}  double.onnx  locked\n" * 4
    assert cli("lock", path, "--check").code == 0
    assert cli("validate", path).code == 0


def test_a_changed_model_is_found_and_can_be_locked_again(cli: Cli, folder: Path) -> None:
    cli("lock", folder / "m.yaml")
    scale_model(folder / "double.onnx", factor=3.0)
    checked = cli("lock", folder / "m.yaml", "--check", "--format", "json")
    assert checked.code == 1
    assert {file["state"] for file in checked.json["files"]} == {"changed"}
    assert cli("lock", folder / "m.yaml").code == 0
    assert cli("lock", folder / "m.yaml", "--check").code == 0


def test_adapters_are_locked_too_and_files_that_are_not_there_are_named(cli: Cli, folder: Path) -> None:
    path = folder / "m.yaml"
    path.write_text(TEXT % ("0" * 64, "b" * 64) + "adapters:\n  a: {path: gone.onnx_adapter, model: first}\n")
    before = path.read_text()
    refused = cli("lock", path)
    assert refused.code == 1
    assert "error[unreadable-adapter]" in refused.err
    assert path.read_text() == before
    make_adapter(folder / "gone.onnx_adapter", a=np.ones(1, np.float32))
    assert cli("lock", path).code == 0
    assert f"model: first, sha256: {file_digest(folder / 'gone.onnx_adapter')}" not in path.read_text()
    assert f"gone.onnx_adapter, sha256: {file_digest(folder / 'gone.onnx_adapter')}" in path.read_text()


def test_line_ends_and_a_byte_order_mark_stay(cli: Cli, folder: Path) -> None:
    path = folder / "m.yaml"
    path.write_bytes(b"\xef\xbb\xbfversion: 1\r\nmodels:\r\n  m:\r\n    path: double.onnx")
    assert cli("lock", path).code == 0
    digest = file_digest(folder / "double.onnx")
    assert path.read_bytes() == (
        b"\xef\xbb\xbfversion: 1\r\nmodels:\r\n  m:\r\n    path: double.onnx\r\n    sha256: " + digest.encode()
    )


def test_text_that_a_digest_cannot_be_put_into_is_left_alone(cli: Cli, folder: Path) -> None:
    path = folder / "m.yaml"
    path.write_text("version: 1\nx-m: &m {path: double.onnx}\nmodels: {a: {<<: *m}, b: {<<: *m, cache: true}}\n")
    before = path.read_text()
    result = cli("lock", path)
    if result.code == 0:
        assert cli("lock", path, "--check").code == 0
    else:
        assert "write by hand" in result.err
        assert path.read_text() == before


def test_profiles_and_sets_are_not_written(cli: Cli, folder: Path) -> None:
    assert cli("lock", folder / "m.yaml", "--set", "models.first.path=double.onnx").code == 64
    assert cli("lock", folder / "m.yaml", "--set", "models.first.path=double.onnx", "--check").code == 1


NAMES = st.text("abc.-/ äß,'\"#:", min_size=1, max_size=12).filter(lambda name: name.strip() == name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(15, 150))
@given(
    paths=st.lists(NAMES, min_size=1, max_size=4),
    flow=st.booleans(),
    first=st.booleans(),
    ends=st.sampled_from(["\n", "\r\n"]),
)
def test_any_path_gets_its_digest(paths: list[str], flow: bool, first: bool, ends: str) -> None:
    lines = ["models:"]
    for index, path in enumerate(paths):
        quoted = json.dumps(path, ensure_ascii=False)
        if flow:
            lines.append(f"  m{index}: {{cache: true, path: {quoted}}} # c")
        else:
            keys = [f"    path: {quoted} # c", "    cache: true"]
            lines += [f"  m{index}:", *(keys if first else reversed(keys))]
    text = ends.join(lines) + ends
    document, problems = parse_document(text.encode(), "m.yaml")
    assert document is not None
    assert not problems
    values: dict[tuple[str | int, ...], str] = {
        ("models", f"m{index}"): f"digest{index}" for index in range(len(paths))
    }
    changed = set_beside(text, document, "sha256", dict.fromkeys(values, "path"), values)
    for value in values.values():
        changed = changed.replace(f", sha256: {value}", "").replace(f"{ends}    sha256: {value}", "")
    assert changed == text


@pytest.mark.reads_graphs
def test_the_graph_of_a_model_that_has_not_changed_is_not_read_again(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, model = deployment / "m.yaml", deployment / "double.onnx"
    assert cli("apply", manifest).code == 0
    with monkeypatch.context() as patch:
        patch.setattr("ortdeploy.graph.model.read_model", None)
        assert cli("lock", manifest).code == 0
        assert file_digest(model) in manifest.read_text()
        assert cli("lock", manifest, "--check").code == 0
    scale_model(model, factor=3.0)
    assert cli("lock", manifest, "--check").code == 1
