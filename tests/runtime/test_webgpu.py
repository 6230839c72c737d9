"""WebGPU for real, where a Vulkan driver is there (`. .ci/vulkan` brings a software one): the one provider here whose
tensors live in a memory of their own.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from conftest import read_rows, run_process
from onnx import TensorProto, helper
from support.models import save_model
from support.placement import predicted_right
from support.plugins import needs_qnn, report

from ortdeploy.runtime.probe import probe_runtime

WEBGPU = "WebGpuExecutionProvider"

MANIFEST = """\
version: 1
models:
  m:
    path: m.onnx
    providers: {chain}
    cpu_fallback: {cpu_fallback}
jobs:
  run:
    model: m
    input: {{path: data.npy}}
    batch: {{size: 4}}
    output: {{path: out}}
"""


def write(folder: Path, chain: str = "[WebGpu, CPU]", cpu_fallback: str = "forbid") -> None:
    """y = 2 * erf(2 * x) over eight rows; QNN has no Erf."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["a"], name="first"),
        helper.make_node("Erf", ["a"], ["b"], name="middle"),
        helper.make_node("Mul", ["b", "two"], ["y"], name="last"),
    ]
    tensor = (TensorProto.FLOAT, (4, 4))
    save_model(folder / "m.onnx", nodes, {"x": tensor}, {"y": tensor}, {"two": np.array(2, np.float32)})
    np.save(folder / "data.npy", np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4))
    (folder / "m.yaml").write_text(MANIFEST.format(chain=chain, cpu_fallback=cpu_fallback))


@pytest.fixture(scope="module")
def _webgpu(tmp_path_factory: pytest.TempPathFactory) -> None:
    if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
        pytest.skip("onnxruntime-ep-webgpu is not installed")
    folder = tmp_path_factory.mktemp("webgpu")
    write(folder)
    tried = run_process(["apply", "m.yaml"], cwd=folder)
    if tried.code != 0:
        pytest.skip(f"WebGPU does not run here: {tried.out[-300:]}")


pytestmark = pytest.mark.usefixtures("_webgpu")


def test_it_runs_and_is_proven_to_have_run(tmp_path: Path) -> None:
    write(tmp_path)
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    assert report(tmp_path)["placement"] == {WEBGPU: 3}
    assert len(read_rows(tmp_path / "out")) == 8


def test_its_device_tells_its_memory() -> None:
    (device,) = (one for one in probe_runtime({WEBGPU: None}).devices if one.provider == WEBGPU)
    assert device.memory == "WebGPU_Buf"
    assert device.host_accessible_memory is None


def test_nodes_that_are_pushed_off_it_are_found_on_the_cpu_by_operator(tmp_path: Path) -> None:
    write(tmp_path, "[{provider: WebGpu, options: {forceCpuNodeNames: middle}}, CPU]")
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 1
    assert "1 of 3 nodes" in " ".join(applied.out.split())
    assert "(Erf)" in applied.out


OPENING = """\
import onnxruntime as ort, onnxruntime_ep_webgpu
ort.register_execution_provider_library("WebGpuExecutionProvider", onnxruntime_ep_webgpu.get_library_path())
devices = [one for one in ort.get_ep_devices() if one.ep_name == "WebGpuExecutionProvider"][:1]
def open_session(path, options):
    options.add_provider_for_devices(devices, {})
    return ort.InferenceSession(path, options, enable_fallback=0)
"""


def test_its_placement_is_predicted_from_its_kernels() -> None:
    right, nodes = predicted_right(WEBGPU, OPENING)
    assert nodes > 4000
    assert right / nodes > 0.98


@needs_qnn
def test_a_compiling_provider_before_it_shares_the_graph_with_it(tmp_path: Path) -> None:
    write(tmp_path, "[{provider: QNN, options: {backend_type: htp}}, WebGpu, CPU]")
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 0, applied.out
    assert report(tmp_path)["placement"] == {"QNNExecutionProvider": 2, WEBGPU: 1}


@needs_qnn
def test_behind_it_a_compiling_provider_is_warned_of_and_gets_nothing(tmp_path: Path) -> None:
    write(tmp_path, "[WebGpu, {provider: QNN, options: {backend_type: htp}}, CPU]")
    applied = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert applied.code == 1
    assert "warning[late-compiler]" in applied.out
    assert "QNNExecutionProvider took no node" in applied.out
