"""What tests of plugin packages need: which are installed, and what a run on them left."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from ortdeploy.runtime.probe import probe_runtime

QNN = "onnxruntime_qnn"
HAS_OPENVINO = importlib.util.find_spec("onnxruntime_ep_openvino") is not None
needs_qnn = pytest.mark.skipif(importlib.util.find_spec(QNN) is None, reason="onnxruntime-qnn is not installed")
HAS_OPENVINO_DEVICE = HAS_OPENVINO and bool(probe_runtime({"OpenVINOExecutionProvider": None}).devices)
needs_openvino_device = pytest.mark.skipif(not HAS_OPENVINO_DEVICE, reason="OpenVINO offers no device here")
needs_openvino = pytest.mark.skipif(not HAS_OPENVINO, reason="onnxruntime-ep-openvino is not installed")


def report(folder: Path) -> dict[str, Any]:
    """The report of the job that wrote to `out`."""
    loaded: dict[str, Any] = json.loads((folder / "out/_run.json").read_text())
    return loaded
