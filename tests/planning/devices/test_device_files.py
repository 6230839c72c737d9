"""Device files from strangers: refused in words, or planned for as they say."""

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import REPOSITORY, Cli
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.hostile import mutate
from support.models import scale_model

from ortdeploy.diagnostics import has_errors
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.planning.devices.device_file import load_device
from ortdeploy.planning.workflow import plan_manifests

MANIFEST = """\
version: 1
models:
  double:
    path: double.onnx
    providers: [{provider: QNN, device: NPU, options: {backend_type: htp}}, CUDA, CPU]
    on_unavailable: next
    threads: auto
jobs:
  run:
    model: double
    input: {path: data.npy}
    batch: {size: 4}
    output: {path: out}
"""
DEVICE: dict[str, Any] = {
    "device_version": 1,
    "name": "board",
    "source": "captured",
    "runtime": {
        "version": "1.31.1", "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"], "max_ir_version": 13,
        "max_opsets": {"ai.onnx": 26}, "packages": ["PIL"],
    },
    "devices": [
        {"provider": "QNNExecutionProvider", "index": 0, "kind": "NPU", "vendor": "Qualcomm", "name": "NPU", "memory": "HTP"},
        {"provider": "QNNExecutionProvider", "index": 1, "kind": "GPU", "vendor": "Qualcomm", "name": "GPU"},
    ],
    "machine": {
        "system": "Linux", "architecture": "aarch64", "python": "3.12", "cores": 8, "cpu_quota": 4.0,
        "memory_bytes": 8000000000, "cpu_flags": ["neon"],
    },
    "kernels": {"CUDAExecutionProvider": {"ai.onnx.Mul": ["7-12 T=tensor(float)|tensor(double)", "13- T=tensor(float)"]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices")
    scale_model(folder / "double.onnx")
    np.save(folder / "data.npy", np.ones((8, 4), np.float32))
    (folder / "m.yaml").write_text(MANIFEST)
    return folder


def hold(folder: Path, device: Any) -> bool:
    """Plan for a device file; it is refused in words, or taken."""
    path = folder / "device.yaml"
    path.write_bytes(yaml.safe_dump(device, allow_unicode=True).encode(errors="surrogatepass"))
    host, diagnostics = load_device(str(path))
    assert (host is None) == has_errors(diagnostics)
    plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None, device=str(path))
    return host is not None


def test_the_device_of_these_tests_is_taken(site: Path) -> None:
    assert hold(site, DEVICE)


def test_the_committed_devices_are_taken(site: Path) -> None:
    for path in (REPOSITORY / "deployments/devices").glob("*.yaml"):
        assert hold(site, yaml.safe_load(path.read_text()))


@pytest.mark.quick(0, 3, 4, 5, 7, 9, 11)
@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (("machine", "cores"), 10**30, "machine.cores is 1000000000000000000000000000000; at most 65536 is allowed"),
        (("machine", "cores"), 0, "at least 1 is allowed"),
        (("machine", "memory_bytes"), -1, "at least 1 is allowed"),
        (("machine", "cpu_quota"), 0, "at least 0.001 is allowed"),
        (("devices", 1, "index"), 0, "devices[1] has the number of devices[0], 0 of QNNExecutionProvider"),
        (("devices", 0, "kind"), "TPU", "devices[0].kind is"),
        (("devices", 0, "name"), "x" * 300, "is longer than 200 characters"),
        (("runtime", "version"), "1." + "9" * 5000, "runtime.version is"),
        (("runtime", "version"), "newest", "runtime.version is"),
        (("kernels", "CUDAExecutionProvider", "ai.onnx.Mul"), ["9" * 5000 + "-"], "kernels.CUDAExecutionProvider.ai.onnx.Mul[0] is"),
        (("device_version",), 2, "device_version must be 1"),
        (("new",), 1, '"new" is not a key of the device file'),
    ],
)  # fmt: skip
def test_a_value_that_no_device_has_is_refused_in_words(
    cli: Cli, site: Path, way: tuple[Any, ...], value: Any, said: str
) -> None:
    device = copy.deepcopy(DEVICE)
    node = device
    for key in way[:-1]:
        node = node[key]
    node[way[-1]] = value
    (site / "device.yaml").write_text(yaml.safe_dump(device, width=10_000))
    refused = cli("plan", site / "m.yaml", "--device", site / "device.yaml")
    assert refused.code == 1
    assert said in " ".join(refused.out.split())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_mutated_device_file_is_refused_or_taken(site: Path, data: st.DataObject) -> None:
    hold(site, mutate(DEVICE, lambda most: data.draw(st.integers(0, most - 1))))


@pytest.mark.slow
def test_thousands_of_mutated_device_files(site: Path) -> None:
    chance = random.Random(19)  # noqa: S311  a seed, no secret
    taken, tried = 0, effort(1000, 3000)
    for _ in range(tried):
        device = DEVICE
        for _ in range(chance.randint(1, 3)):
            device = mutate(device, chance.randrange) if isinstance(device, dict) and device else DEVICE
        taken += hold(site, device)
    assert tried // 30 < taken < tried * 29 // 30, "both kinds were tried"
