"""What a file holds decides what it is: a suffix or a place in the manifest that says otherwise is refused, in words."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from conftest import Cli

from ortdeploy.files.content import recognise


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a", "b")
    return buffer.getvalue()


def array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


IN_PLACE_OF_A_MODEL = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Run git lfs pull."),
    "page": (b"\n<!DOCTYPE html><html></html>", "a web page"),
    "json": (b'{\n  "a": 1}', "JSON text"),
    "archive": (archive(), "a zip archive"),
    "array": (array(), "a .npy array"),
    "adapter": (b"\x1c\x00\x00\x00TORT" + bytes(60), "an ONNX Runtime adapter file"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(60), "a PNG image"),
    "safetensors": ((64).to_bytes(8, "little") + b'{"a":' + bytes(60), "in safetensors format"),
    "empty": (b"", "is empty"),
}


@pytest.mark.parametrize("suffix", ["onnx", "ort"])
@pytest.mark.parametrize("what", IN_PLACE_OF_A_MODEL)
def test_what_stands_in_a_models_place_is_named(cli: Cli, deployment: Path, what: str, suffix: str) -> None:
    raw, words = IN_PLACE_OF_A_MODEL[what]
    (deployment / f"m.{suffix}").write_bytes(raw)
    manifest = deployment / "m.yaml"
    manifest.write_text(manifest.read_text().replace("double.onnx", f"m.{suffix}"))
    result = cli("plan", deployment, "--format", "json")
    (found,) = result.json["diagnostics"]
    assert (result.code, found["rule"]) == (1, "unreadable-model")
    assert words in found["detail"]


@pytest.mark.parametrize("what", [*IN_PLACE_OF_A_MODEL, "model"])
def test_what_stands_in_an_adapters_place_is_named(cli: Cli, deployment: Path, what: str) -> None:
    raw, words = IN_PLACE_OF_A_MODEL.get(what, ((deployment / "double.onnx").read_bytes(), "a model by its name"))
    words = {"adapter": "cut off or damaged", "archive": "a .npz archive"}.get(what, words)
    (deployment / "a.onnx").write_bytes(raw)
    manifest = deployment / "m.yaml"
    text = manifest.read_text().replace("jobs:", "adapters:\n  a: {path: a.onnx, model: double}\njobs:")
    manifest.write_text(text.replace("    batch", "    adapter: a\n    batch"))
    result = cli("plan", deployment, "--format", "json")
    details = [one["detail"] for one in result.json["diagnostics"] if one["rule"] == "unreadable-adapter"]
    assert result.code == 1
    assert [words in detail for detail in details] == [True], details


def ort_format(folder: Path) -> bytes:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "o.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(folder / "double.onnx", options, providers=["CPUExecutionProvider"])
    return (folder / "o.ort").read_bytes()


@pytest.mark.parametrize(
    ("content", "name", "session", "words"),
    [
        ("onnx", "m.onnx", "", None),
        ("onnx", "m.bin", "", None),
        ("onnx", "m.ort", "", "is an ONNX model"),
        ("onnx", "m.ORT", "", "Name it .onnx"),
        ("onnx", "m.onnx", "session.load_model_format: ORT", "Leave that out"),
        ("ort", "m.ort", "", None),
        ("ort", "m.onnx", "", "Rename it to end in .ort"),
        ("ort", "m.onnx", "session.load_model_format: ORT", None),
    ],
)
def test_a_suffix_that_says_otherwise_is_refused_where_onnxruntime_goes_by_it(
    cli: Cli, deployment: Path, content: str, name: str, session: str, words: str | None
) -> None:
    raw = ort_format(deployment) if content == "ort" else (deployment / "double.onnx").read_bytes()
    (deployment / name).write_bytes(raw)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if session:
        options.add_session_config_entry("session.load_model_format", "ORT")
    opens = True
    try:
        ort.InferenceSession(deployment / name, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception:  # noqa: BLE001  every error of the binding is its own class
        opens = False
    assert opens == (words is None)
    manifest = deployment / "m.yaml"
    manifest.write_text(
        manifest.read_text().replace("double.onnx", f"{name}, session: {{config: {{{session}}}}}" if session else name)
    )
    result = cli("plan", deployment, "--format", "json")
    details = [one["detail"] for one in result.json["diagnostics"]]
    assert (result.code, len(details)) == ((0, 0) if words is None else (1, 1)), details
    assert words is None or words in details[0]


def test_no_model_of_a_producer_is_taken_for_something_else() -> None:
    for producer in (b"TORT", b"TFL3", b"{}"):
        assert recognise(b"\x08\x07\x12\x04" + producer + bytes(20)) is None


def test_validate_knows_device_files_and_says_what_it_leaves_out(cli: Cli, deployment: Path) -> None:
    devices = deployment / "devices"
    devices.mkdir()
    device = devices / "board.yaml"
    device.write_text("device_version: 1\nruntime: {version: 1.31.1, providers: [CPUExecutionProvider]}\n")
    assert cli("validate", devices).code == 0
    assert f"Not looked into: {devices}." in cli("validate", deployment).words
    assert "Not looked into" not in cli("validate", deployment, devices).words
    device.write_text("device_version: 1\nruntime: {version: 1.31.1, provider: []}\n")
    result = cli("validate", device, "--format", "json")
    assert {one["rule"] for one in result.json["diagnostics"]} == {"missing-key", "unknown-key"}
    for command in ("plan", "apply"):
        refused = cli(command, device)
        assert refused.code == 1
        assert "describes a device" in refused.words


def test_the_projects_own_device_files_are_valid(cli: Cli) -> None:
    folder = Path(__file__).parents[2] / "deployments" / "devices"
    result = cli("validate", folder, "--format", "json")
    assert (result.code, json.loads(result.out)["diagnostics"]) == (0, [])
