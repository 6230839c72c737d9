"""The pairs that really fail: refused by the planner, and, past the rules, failing as they were seen to.

A chain that no manifest may have is put together from the plans of its parts, as if no rule had objected.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Result, run_process
from onnx import TensorProto, helper
from support.models import save_model
from support.past_the_rules import apply_document, plan_document
from support.plugins import needs_openvino_device, needs_qnn

from ortdeploy.runtime.probe import probe_runtime

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx, providers: CHAIN, cpu_fallback: allow, probe: false}
jobs:
  run: {model: m, input: {path: data.npy}, batch: {size: 4}, output: {path: out}}
"""
QNN = "{provider: QNN, options: {backend_type: htp}}"
OPENVINO = "{provider: OpenVINO, device: CPU}"

HAS_WEBGPU = any(probe_runtime({"WebGpuExecutionProvider": None}).devices)
needs_webgpu_device = pytest.mark.skipif(not HAS_WEBGPU, reason="WebGPU offers no device here")


def write(folder: Path, *operators: str) -> None:
    """A chain of operators, each of one input and one output."""
    names = ["x", *(f"v{index}" for index in range(len(operators) - 1)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(operators)]
    tensor = (TensorProto.FLOAT, (4, 4))
    save_model(folder / "m.onnx", nodes, {"x": tensor}, {"y": tensor})
    np.save(folder / "data.npy", np.full((4, 4), 0.5, np.float32))


def plan(folder: Path, *providers: str) -> Result:
    (folder / "m.yaml").write_text(MANIFEST.replace("CHAIN", f"[{', '.join(providers)}, CPU]"))
    return run_process(["plan", "m.yaml"], cwd=folder)


def apply_past_the_rules(folder: Path, *providers: str) -> Result:
    """Apply a plan whose chain is that of several plans, one after another."""
    chain = []
    for provider in providers:
        assert plan(folder, provider).code == 0
        document = plan_document(folder)
        (candidate,) = document["steps"][0]["candidates"]
        chain.append(candidate["providers"][0])
    candidate["providers"] = [*chain, candidate["providers"][-1]]
    return apply_document(document, folder)


@needs_qnn
def test_a_chain_is_put_together_as_written(tmp_path: Path) -> None:
    """The way past the rules itself: a chain of one provider runs as its plan would."""
    write(tmp_path, "Relu", "Erf")
    applied = apply_past_the_rules(tmp_path, QNN)
    assert applied.code == 0, applied.out
    assert json.loads((tmp_path / "out/_run.json").read_text())["placement"]["QNNExecutionProvider"] == 1


@needs_qnn
@needs_openvino_device
def test_openvinos_cpu_device_and_qnn_fail_in_one_session(tmp_path: Path) -> None:
    """QNN has no Erf, OpenVINO takes it; what it puts out is then taken for QNN's own shared memory."""
    write(tmp_path, "Relu", "Erf", "Relu")
    refused = plan(tmp_path, QNN, OPENVINO)
    assert refused.code == 1
    assert "error[incompatible-providers]" in refused.out
    applied = apply_past_the_rules(tmp_path, QNN, OPENVINO)
    assert applied.code == 1
    assert "shared memory address" in " ".join(applied.out.split())


@needs_openvino_device
def test_openvinos_cpu_device_and_webgpu_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "Relu", "Erf")
    refused = plan(tmp_path, OPENVINO, "WebGpu")
    assert refused.code == 1
    assert "error[incompatible-providers]" in refused.out


@needs_openvino_device
@needs_webgpu_device
def test_openvinos_cpu_device_and_webgpu_abort_the_process_and_not_ortdeploy(tmp_path: Path) -> None:
    """OpenVINO declines FastGelu, which WebGPU then takes with OpenVINO's output."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("FastGelu", ["a"], ["y"], domain="com.microsoft")]
    tensor = helper.make_tensor_value_info("x", 1, [4, 4]), helper.make_tensor_value_info("y", 1, [4, 4])
    inner = helper.make_tensor_value_info("a", 1, [4, 4])
    graph = helper.make_graph(nodes, "g", [tensor[0]], [tensor[1]], value_info=[inner])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.full((4, 4), 0.5, np.float32))
    applied = apply_past_the_rules(tmp_path, OPENVINO, "WebGpu")
    assert applied.code == 1
    assert "was ended by SIGABRT" in " ".join(applied.out.split())
    assert "Traceback" not in applied.err
