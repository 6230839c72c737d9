"""CUDA for real, where a GPU and onnxruntime-gpu are there: the same promises as on every other provider."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import read_rows, run_process
from onnx import TensorProto, helper
from support.adapter_jobs import write_adapter_job
from support.models import save_model, scale_model
from support.placement import predicted_right
from support.plugins import report

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import options_schema, serialise
from ortdeploy.runtime.probe import probe_runtime

CUDA = "CUDAExecutionProvider"
FACTS = probe_runtime({CUDA: None})
WHY_NOT = FACTS.plugin_problems.get(CUDA, "this onnxruntime has no CUDA provider")
pytestmark = pytest.mark.skipif(CUDA not in FACTS.available_providers, reason=WHY_NOT)

MANIFEST = """\
version: 1
models:
  double: {path: double.onnx, providers: [{provider: CUDA, options: {gpu_mem_limit: 512MiB}}, CPU], cpu_fallback: forbid}
jobs:
  run: {model: double, input: {path: data.npy}, batch: {size: 4}, output: {path: out}}
"""


def test_it_runs_and_is_proven_to_have_run(tmp_path: Path) -> None:
    scale_model(tmp_path / "double.onnx")
    np.save(tmp_path / "data.npy", np.arange(40, dtype=np.float32).reshape(10, 4))
    (tmp_path / "m.yaml").write_text(MANIFEST)
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    assert report(tmp_path)["placement"] == {CUDA: 1}
    rows = [row["y"] for row in read_rows(tmp_path / "out")]
    assert np.allclose(rows, np.arange(40).reshape(10, 4) * 2)


def test_a_device_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    scale_model(tmp_path / "double.onnx")
    np.save(tmp_path / "data.npy", np.zeros((4, 4), np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("gpu_mem_limit: 512MiB", "device_id: 99"))
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 1
    assert not list((tmp_path / "out").glob("part-*"))


def test_what_the_catalogue_says_of_options_is_what_the_provider_takes(tmp_path: Path) -> None:
    """Every value that the schema allows: choices, both booleans, the ends of ranges, sizes."""
    scale_model(tmp_path / "double.onnx")
    cuda = find_provider("CUDA")
    assert cuda is not None
    written = {name: values_of(facts) for name, facts in options_schema(cuda)["properties"].items()}
    options = [serialise(cuda, {name: value}) for name, values in written.items() for value in values]
    command = [sys.executable, "-c", OPEN_EACH, str(tmp_path / "double.onnx"), json.dumps(options)]
    opened = json.loads(subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout)
    assert len(opened) == len(options) >= 40
    assert [one for one in opened if one["problem"]] == []
    for given, one in zip(options, opened, strict=True):
        for name, text in given.items():
            assert one["options"].get(name, text) == text


def values_of(facts: Mapping[str, Any]) -> list[Any]:
    """Return values of one option that its schema allows; a device's number stays the first."""
    if "enum" in facts:
        return list(facts["enum"])
    if facts.get("type") == "boolean":
        return [True, False]
    if "anyOf" in facts:
        return ["512MiB", 0, 1 << 33]
    return [0] if "GPU" in facts["description"] else sorted({0, 1, facts.get("maximum", 1)})


OPEN_EACH = """\
import json, sys
import onnxruntime as ort
ort.preload_dlls()
opened = []
for options in json.loads(sys.argv[2]):
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    chain = [("CUDAExecutionProvider", options), "CPUExecutionProvider"]
    try:
        session = ort.InferenceSession(sys.argv[1], settings, providers=chain, enable_fallback=0)
        opened.append({"problem": None, "options": session.get_provider_options()["CUDAExecutionProvider"]})
    except Exception as error:
        opened.append({"problem": str(error), "options": {}})
print(json.dumps(opened))
"""


def test_adapters_by_row_add_what_they_should(tmp_path: Path) -> None:
    path = write_adapter_job(tmp_path, "providers: [CUDA, CPU], cpu_fallback: forbid", required=False)
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    got = [row["y"] for row in read_rows(tmp_path / "out")]
    assert got == [[number + (number if number % 2 else 0)] * 4 for number in range(6)]
    path.write_text(path.read_text().replace("model: m}", "model: m, device: cpu}", 1))
    assert "adapter-placement" in run_process(["plan", "m.yaml"], cwd=tmp_path).out


def test_an_index_outside_of_its_table_fails_its_row(tmp_path: Path) -> None:
    """CUDA gives zeros for it, without a message."""
    node = helper.make_node("Gather", ["table", "i"], ["y"])
    table = {"table": np.arange(1, 11, dtype=np.float32)}
    save_model(
        tmp_path / "m.onnx", [node], {"i": (TensorProto.INT64, ("n",))}, {"y": (TensorProto.FLOAT, ("n",))}, table
    )
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"i": i}) + "\n" for i in (1, 10, -1, -11, 9)))
    manifest = MANIFEST.replace("data.npy", "data.jsonl").replace("double.onnx", "m.onnx")
    (tmp_path / "m.yaml").write_text(manifest.replace("output:", "errors: {max_failed: 10}, output:"))
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    assert [row["y"] for row in read_rows(tmp_path / "out")] == [2.0, 10.0, 10.0]


def test_its_placement_is_predicted_from_its_kernels() -> None:
    right, nodes = predicted_right(CUDA, OPENING)
    assert nodes > 1000
    assert right / nodes > 0.98


OPENING = """\
import onnxruntime as ort
ort.preload_dlls()
def open_session(path, options):
    chain = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    return ort.InferenceSession(path, options, providers=chain, enable_fallback=0)
"""
