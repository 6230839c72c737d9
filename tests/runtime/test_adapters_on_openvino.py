"""LoRA behind OpenVINO's plugin package, where it offers a device: inputs with defaults fail as recorded, others run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from conftest import Cli, run_process
from support.models import lora_model, make_adapter
from support.plugins import needs_openvino_device

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.runtime.plugins import find_library

OPEN = """\
import sys
import onnxruntime
from ortdeploy.runtime.plugins import describe, ep_devices, register
register("OpenVINOExecutionProvider", sys.argv[1])
assert describe("OpenVINOExecutionProvider", sys.argv[1])
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_provider_for_devices([ep_devices("OpenVINOExecutionProvider")[0]], {})
onnxruntime.InferenceSession(sys.argv[2], options)
"""
"""Opens a session in a process of its own: a process that has registered a library counts its provider as built in."""

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx, providers: [OpenVINO, CPU]}
adapters:
  a: {path: a.onnx_adapter, model: m}
jobs:
  run:
    model: m
    adapter: {column: language, map: {fr: a}, otherwise: none}
    input: {path: data.jsonl}
    output: {path: out}
"""
A, B = np.ones((4, 2), np.float32), np.full((2, 4), 0.125, np.float32)


def prepare(folder: Path, *, required: bool) -> None:
    lora_model(folder / "m.onnx", required=required)
    make_adapter(folder / "a.onnx_adapter", lora_A=A, lora_B=B)
    rows = [{"x": [number] * 4, "language": "fr" if number % 2 else "de"} for number in range(6)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "m.yaml").write_text(MANIFEST)


@needs_openvino_device
def test_inputs_with_defaults_are_refused_for_the_reason_that_onnxruntime_gives(cli: Cli, tmp_path: Path) -> None:
    prepare(tmp_path, required=False)
    refused = cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    assert [one["rule"] for one in refused] == ["overridable-initializer"]
    library = find_library(provider) if (provider := find_provider("OpenVINO")) else None
    assert library is not None
    command = [sys.executable, "-c", OPEN, library, str(tmp_path / "m.onnx")]
    opened = subprocess.run(command, check=False, capture_output=True, text=True)
    assert opened.returncode == 1
    assert "Input names mismatch between OpenVINO and ONNX" in opened.stderr


@needs_openvino_device
def test_inputs_without_defaults_run_with_adapters_by_row(tmp_path: Path) -> None:
    prepare(tmp_path, required=True)
    applied = run_process(["apply", "m.yaml", "-q"], cwd=tmp_path)
    assert applied.code == 0, applied.out + applied.err
    lines = (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()
    assert [json.loads(line)["y"][0] for line in lines] == [0.0, 2.0, 2.0, 6.0, 4.0, 10.0]
    report = json.loads((tmp_path / "out/_run.json").read_text())
    assert set(report["placement"]) == {"OpenVINOExecutionProvider"}
    assert report["adapter_rows"] == {"a": 3, "none": 3}
