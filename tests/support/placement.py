"""Compares predicted placement with what ONNX Runtime records, on the models that onnx and this repository ship."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
from conftest import REPOSITORY

from ortdeploy.deployment.placement_prediction import predict_placement
from ortdeploy.graph.model import read_model
from ortdeploy.providers.catalogue import CPU
from ortdeploy.runtime.probe import probe_runtime

_RECORDING = """\
import collections, json, sys
ort.set_default_logger_severity(4)
for path in sys.argv[1:]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    counts = collections.Counter()
    try:
        session = open_session(path, options)
        for part in session.get_provider_graph_assignment_info():
            counts[part.ep_name] += len(part.get_nodes())
    except Exception:
        counts = None
    print(json.dumps(counts))
"""


def predicted_right(provider: str, opening: str) -> tuple[int, int]:
    """Return how many nodes were rightly predicted to be on the CPU or not, of how many.

    A provider may get Transposes that ONNX Runtime inserts; the CPU gets what was predicted. `opening` is code that
    defines `open_session(path, options)` and imports onnxruntime as ort.
    """
    kernels = probe_runtime({provider: None}).kernels
    models = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))
    models += sorted((REPOSITORY / "deployments").rglob("*.onnx"))
    command = [sys.executable, "-c", opening + _RECORDING, *map(str, models)]
    lines = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.splitlines()
    right = nodes = 0
    for path, recorded in zip(models, map(json.loads, lines), strict=True):
        prediction = predict_placement(read_model(path, path.name), [provider, CPU], kernels)
        assert prediction is not None
        if recorded is not None:
            predicted = sum(prediction.nodes.values())
            nodes += predicted
            right += predicted - abs(recorded.get(CPU, 0) - prediction.nodes.get(CPU, 0))
    return right, nodes
