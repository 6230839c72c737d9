"""The predicted memory of weights against what a session keeps of them, in a process of its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from onnx import NodeProto, TensorProto, helper
from support.models import save_model
from support.opening import memory_of_opening

from ortdeploy.graph import activations
from ortdeploy.process.heap import mallopt
from ortdeploy.runtime.machine import probe_machine

MIB = 1024 * 1024
FLOAT, HALF = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)
RANDOM = np.random.default_rng(0)
LOADED = 10.3 * MIB
"""What the first session of a process takes for the library, measured with a model without weights."""


def random(*shape: int) -> np.ndarray:
    """Weights that are not equal to others: ONNX Runtime keeps equal ones once."""
    return RANDOM.normal(size=shape).astype(np.float32)


def products(path: Path, kind: int, dtype: type, *, transposed: bool = False) -> None:
    """Eight matrices of a mebi of numbers."""
    weights: dict[str, np.ndarray] = {f"w{number}": random(1024, 1024).astype(dtype) for number in range(8)}
    nodes: list[NodeProto] = []
    for number in range(8):
        used = f"t{number}" if transposed else f"w{number}"
        nodes += [helper.make_node("Transpose", [f"w{number}"], [used])] if transposed else []
        nodes.append(helper.make_node("MatMul", [f"v{number}", used], [f"v{number + 1}"]))
    save_model(path, nodes, {"v0": (kind, ["n", 1024])}, {"v8": (kind, ["n", 1024])}, weights)


def convolutions(path: Path, channels: int) -> None:
    """Filters of 32 MiB, whose channels may fill blocks or not."""
    count = 32 * MIB // (channels * channels * 9 * 4)
    weights = {f"w{number}": random(channels, channels, 3, 3) for number in range(count)}
    nodes = [
        helper.make_node("Conv", [f"v{number}", f"w{number}"], [f"v{number + 1}"], pads=[1] * 4)
        for number in range(count)
    ]
    shape: list[int | str | None] = ["n", channels, 8, 8]
    save_model(path, nodes, {"v0": (TensorProto.FLOAT, shape)}, {f"v{count}": (TensorProto.FLOAT, shape)}, weights)


MODELS: dict[str, Callable[[Path], None]] = {
    "products": lambda path: products(path, FLOAT, np.float32),
    "products in half precision": lambda path: products(path, HALF, np.float16),
    "transposed products": lambda path: products(path, FLOAT, np.float32, transposed=True),
    "convolutions of whole blocks": lambda path: convolutions(path, 256),
    "convolutions of blocks that are filled up": lambda path: convolutions(path, 100),
}


@pytest.mark.slow
@pytest.mark.skipif(mallopt() is None, reason="the C library is not glibc")
@pytest.mark.parametrize("name", MODELS)
def test_weights_take_what_is_predicted(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if {"avx", "avx512f"}.intersection(probe_machine().cpu_flags) == {"avx"}:
        monkeypatch.setattr(activations, "_CHANNEL_BLOCK", 8)  # else blocks of 16, which a plan counts everywhere
    MODELS[name](tmp_path / "m.onnx")
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\n"
        "jobs: {run: {model: m, input: {path: data.npy}, batch: {size: 1}, output: {path: out, format: npy}}}\n"
    )
    half = "half" in name
    shape = (1, 1024) if "products" in name else (1, 256 if "whole" in name else 100, 8, 8)
    np.save(tmp_path / "data.npy", np.ones(shape, np.float16 if half else np.float32))
    said = cli("plan", tmp_path / "m.yaml", "--format", "json")
    (run,) = (step for step in said.json["steps"] if "limits" in step)
    parts = {part["what"]: part["size"] for part in run["limits"]["forecast"]["parts"]}
    kept, peak = memory_of_opening(tmp_path / "m.onnx")
    assert parts["weights"] == pytest.approx(kept - LOADED, rel=0.08)
    predicted = sum(parts.values()) - parts["process"]
    assert predicted == pytest.approx(peak - LOADED, rel=0.15)
