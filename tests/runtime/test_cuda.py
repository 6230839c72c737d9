"""CUDA for real, where a GPU and onnxruntime-gpu are there: the same promises as on every other provider."""

from pathlib import Path

import numpy as np
import pytest
from conftest import read_rows, run_process
from support.models import scale_model
from support.plugins import report

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
