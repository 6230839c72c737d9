"""LoRA behind OpenVINO's plugin package, where it offers a device: inputs with defaults fail as recorded, others run."""

import json
import subprocess
import sys
from pathlib import Path

from conftest import Cli, run_process
from support.adapter_jobs import write_adapter_job
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

KEYS = "providers: [OpenVINO, CPU]"


@needs_openvino_device
def test_inputs_with_defaults_are_refused_for_the_reason_that_onnxruntime_gives(cli: Cli, tmp_path: Path) -> None:
    write_adapter_job(tmp_path, KEYS, required=False)
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
    write_adapter_job(tmp_path, KEYS, required=True)
    applied = run_process(["apply", "m.yaml", "-q"], cwd=tmp_path)
    assert applied.code == 0, applied.out + applied.err
    lines = (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()
    assert [json.loads(line)["y"][0] for line in lines] == [0.0, 2.0, 2.0, 6.0, 4.0, 10.0]
    report = json.loads((tmp_path / "out/_run.json").read_text())
    assert set(report["placement"]) == {"OpenVINOExecutionProvider"}
    assert report["adapter_rows"] == {"a": 3, "none": 3}
