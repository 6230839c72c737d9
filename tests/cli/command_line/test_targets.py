"""Flags that name a file to write: they replace what they have written, and nothing else."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from conftest import Cli, deploy

from ortdeploy.cli.main import main
from ortdeploy.events import log

_COMMANDS = {
    "--out": ["plan", "m.yaml", "--out"],
    "--log-file": ["plan", "m.yaml", "--log-file"],
    "--output": ["device", "-o"],
    "--report": ["diff", "outbox/run/_run.json", "outbox/run/_run.json", "--report"],
}
_ALL = pytest.mark.parametrize(("flag", "command"), _COMMANDS.items())


@pytest.fixture(scope="module")
def applied_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("applied")
    deploy(folder)
    assert main(["apply", str(folder / "m.yaml"), "-q"]) == 0
    log.send_to(None)
    return folder


@pytest.fixture
def applied(applied_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(applied_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


@pytest.mark.quick(0, 1, 2, "outbox/---report-command3")
@pytest.mark.usefixtures("applied")
@_ALL
@pytest.mark.parametrize("folder", [".", "..", "outbox/"])
def test_a_folder_is_no_file_to_write(cli: Cli, flag: str, command: Sequence[str], folder: str) -> None:
    refused = cli(*command, folder)
    assert refused.code == 64
    assert f"{flag}: {folder} is a folder" in refused.err


@pytest.mark.quick(0, 1)
@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("color", ["always", "never"])
def test_logs_of_each_form_are_appended_to(cli: Cli, applied: Path, form: str, color: str) -> None:
    for runs in (1, 2):
        assert cli("plan", "m.yaml", "--log-file", "log", "--log-format", form, "--color", color).code == 0
        assert len((applied / "log").read_text().splitlines()) == runs


_LINE = '{"event": "e", "level": "info", "timestamp": "t"}\n'


@pytest.fixture
def named(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest that names one file of each kind, each with the content of a log."""
    monkeypatch.chdir(deployment)
    text = (deployment / "m.yaml").read_text()
    (deployment / "m.yaml").write_text(text.replace("data.npy", "inbox/*.jsonl"))
    (deployment / "o.yaml").write_text("name: other\n")
    (deployment / "inbox").mkdir()
    (deployment / "inbox/a.jsonl").write_text(_LINE)
    (deployment / "linked").symlink_to("inbox/a.jsonl")
    (deployment / "twin").hardlink_to(deployment / "inbox/a.jsonl")
    (deployment / "folder").symlink_to("inbox")
    return deployment


@pytest.mark.parametrize(
    "target",
    [
        "inbox/a.jsonl", "inbox/../inbox/a.jsonl", "linked", "twin", "folder/a.jsonl", "inbox/new.jsonl",
        "folder/new.jsonl", "outbox/run/part-00000000.jsonl", "outbox/run/_run.json", ".ortdeploy/state.db",
        ".ortdeploy/state.db-wal",
    ],
)  # fmt: skip
@pytest.mark.parametrize("flag", ["--out", "--log-file"])
def test_what_a_manifest_names_or_makes_is_not_written_whatever_it_looks_like(
    cli: Cli, named: Path, flag: str, target: str
) -> None:
    if flag == "--out":
        (named / "inbox/a.jsonl").write_text('{"format_version": 1, "kind": "bound", "made_by": "ortdeploy 1"}')
    before = {path: path.read_bytes() for path in named.rglob("*") if path.is_file()}
    refused = cli("plan", "m.yaml", flag, target)
    assert refused.code == 64, refused.err
    assert f"{flag}: {target} is " in refused.err
    assert "of the deployment" in refused.err
    assert {path: path.read_bytes() for path in named.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("target", ["inbox/a.jsonl", "inbox/new.jsonl"])
def test_inputs_of_a_manifest_are_known_whose_path_has_signs_of_patterns(
    cli: Cli, named: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(named.rename(tmp_path_factory.mktemp("there") / "deployment [1]"))
    refused = cli("plan", "m.yaml", "--log-file", target)
    assert (refused.code, "of the deployment" in refused.err) == (64, True), refused.err


@pytest.mark.parametrize("target", ["o.yaml", "double.onnx", "lora.onnx_adapter", "names.txt", "golden/set/in.pb"])
def test_a_file_that_is_empty_is_still_what_a_manifest_names(cli: Cli, named: Path, target: str) -> None:
    text = (named / "m.yaml").read_text().replace("double.onnx}", "double.onnx, checks: [golden]}")
    steps = "    postprocess: [{argmax: y, as: best}, {labels: best, from: names.txt, as: name}]\nadapters: {a: {path: lora.onnx_adapter, model: double}}\n"
    (named / "m.yaml").write_text(text + steps)
    checked = cli("validate", "m.yaml", "--overlay", "o.yaml", "--log-file", "log")
    assert checked.code == 0, checked.words
    (named / target).parent.mkdir(parents=True, exist_ok=True)
    (named / target).write_bytes(b"")
    refused = cli("validate", "m.yaml", "--overlay", "o.yaml", "--log-file", target)
    assert (refused.code, "of the deployment" in refused.err) == (64, True)
    assert (named / target).read_bytes() == b""


@pytest.mark.parametrize("target", ["log", "inbox/log", "outbox/log", "outbox/run/log", ".ortdeploy/log"])
def test_what_no_manifest_names_is_written_again_and_again(cli: Cli, named: Path, target: str) -> None:
    (named / target).parent.mkdir(parents=True, exist_ok=True)
    for runs in (1, 2):
        assert cli("validate", "m.yaml", "--log-file", target, "--log-format", "json").code == 0
        assert len((named / target).read_text().splitlines()) == runs


def test_a_saved_plan_knows_what_its_manifest_names(cli: Cli, applied: Path) -> None:
    assert cli("plan", "m.yaml", "--out", "plan.json", "--new-run").code == 0
    refused = cli("apply", "plan.json", "--log-file", "outbox/run/part-00000007.jsonl")
    assert refused.code == 64
    assert "of the deployment" in refused.err
    assert not (applied / "outbox/run/part-00000007.jsonl").exists()


def test_external_data_is_part_of_a_model(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(deployment)
    model = onnx.load("double.onnx")
    tensor = model.graph.initializer.add(name="w", dims=[len(_LINE)], data_type=onnx.TensorProto.INT8)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights")
    onnx.save(model, "double.onnx")
    (deployment / "weights").write_text(_LINE)
    refused = cli("validate", "m.yaml", "--log-file", "./weights")
    assert (refused.code, "external data" in refused.err) == (64, True)
    assert (deployment / "weights").read_text() == _LINE
