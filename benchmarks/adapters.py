"""What choosing among adapters by row costs, and loading a hundred of them.

A transformer block of width 256 with four adapters of rank 8; rows of 16 tokens. Rows whose adapter a column names, in
random order, against the same rows all with one adapter, at the same batch size; medians of interleaved runs of a
whole job, writing included.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from measure import describe_machine, interleaved, seconds
from measure import ortdeploy as ortdeploy_command
from onnx import TensorProto, helper, numpy_helper

from ortdeploy.cli.main import main as ortdeploy

ROWS, TOKENS, WIDTH, RANK, ADAPTERS, BATCH = 2048, 16, 256, 8, 4, 32
ROUNDS, COLD_ROUNDS = 5, 15
LAYERS = ("q", "k", "v", "o", "up", "down")


def make_model(path: Path) -> None:
    """Attention and two dense layers, each with a pair of matrices that an adapter may bring."""
    random = np.random.default_rng(0)
    weights, nodes = {}, []
    inputs: dict[str, list[int | str | None]] = {"x": ["batch", TOKENS, WIDTH]}

    def dense(source: str, layer: str) -> str:
        a, b = f"{layer}.lora_A", f"{layer}.lora_B"
        weights[f"{layer}.w"] = random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16
        weights[a], weights[b] = np.zeros((WIDTH, 0), np.float32), np.zeros((0, WIDTH), np.float32)
        inputs[a], inputs[b] = [WIDTH, f"r_{layer}"], [f"r_{layer}", WIDTH]
        nodes.append(helper.make_node("MatMul", [source, f"{layer}.w"], [f"{layer}.base"]))
        nodes.append(helper.make_node("MatMul", [source, a], [f"{layer}.low"]))
        nodes.append(helper.make_node("MatMul", [f"{layer}.low", b], [f"{layer}.more"]))
        nodes.append(helper.make_node("Add", [f"{layer}.base", f"{layer}.more"], [f"{layer}.out"]))
        return f"{layer}.out"

    q, k, v = (dense("x", layer) for layer in LAYERS[:3])
    nodes.append(helper.make_node("Transpose", [k], ["kt"], perm=[0, 2, 1]))
    nodes.append(helper.make_node("MatMul", [q, "kt"], ["scores"]))
    nodes.append(helper.make_node("Softmax", ["scores"], ["weights"]))
    nodes.append(helper.make_node("MatMul", ["weights", v], ["mixed"]))
    attended = dense("mixed", "o")
    nodes.append(helper.make_node("Relu", [dense(attended, "up")], ["active"]))
    nodes.append(helper.make_node("ReduceMean", [dense("active", "down")], ["y"], axes=[1], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def make_adapter(path: Path, rank: int, seed: int) -> None:
    """Write random matrices for every layer."""
    random = np.random.default_rng(seed)
    arrays = {}
    for layer in LAYERS:
        arrays[f"{layer}.lora_A"] = random.standard_normal((WIDTH, rank)).astype(np.float32) / 16
        arrays[f"{layer}.lora_B"] = random.standard_normal((rank, WIDTH)).astype(np.float32) / 16
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    adapter = ort.AdapterFormat()
    adapter.set_parameters(values)
    adapter.export_adapter(str(path))


def write_manifest(folder: Path, adapter: str, data: str) -> None:
    """Write a manifest and take the output of the one before away."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    declared = "" if adapter == "none" else "adapters:\n"
    adapters = declared + "".join(
        f"  a{i}: {{path: {i}.onnx_adapter, model: m}}\n" for i in range(ADAPTERS if declared else 0)
    )
    (folder / "m.yaml").write_text(
        f"version: 1\nmodels: {{m: {{path: m.onnx}}}}\n{adapters}jobs:\n  run:\n    model: m\n"
        f"    adapter: {adapter}\n    input: {{path: {data}, columns: {{x: x}}}}\n    batch: {{size: {BATCH}}}\n"
        "    output: {path: out, format: npz}\n"
    )


def run_cold(folder: Path, adapter: str) -> float:
    """Return the seconds of a whole process for a single batch."""
    write_manifest(folder, adapter, "few.npz")
    return seconds(ortdeploy_command("apply", str(folder / "m.yaml"), "-q"))


def run_job(folder: Path, adapter: str) -> float:
    """Return the seconds of a job by its report; opening the session is not among them."""
    write_manifest(folder, adapter, "x.npz")
    code = ortdeploy(["apply", str(folder / "m.yaml"), "-q", "--log-file", str(folder / "log")])
    if code:
        raise SystemExit(code)
    took: float = json.loads((folder / "out/_run.json").read_text())["seconds"]
    return took


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "m.onnx")
        for index in range(ADAPTERS):
            make_adapter(folder / f"{index}.onnx_adapter", RANK, index)
        random = np.random.default_rng(1)
        rows = random.standard_normal((ROWS, TOKENS, WIDTH)).astype(np.float32)
        choice = np.array([f"t{number}" for number in random.integers(0, ADAPTERS, ROWS)])
        np.savez(folder / "x.npz", x=rows, topic=choice)
        np.savez(folder / "few.npz", x=rows[:BATCH], topic=choice[:BATCH])
        mapping = ", ".join(f"t{i}: a{i}" for i in range(ADAPTERS))
        by_row = f"{{column: topic, map: {{{mapping}}}}}"
        found = interleaved({"one": lambda: run_job(folder, "a0"), "by row": lambda: run_job(folder, by_row)}, ROUNDS)
        cold = interleaved(
            {"none": lambda: run_cold(folder, "none"), "one": lambda: run_cold(folder, "a0")}, COLD_ROUNDS
        )
        make_adapter(folder / "big.onnx_adapter", 1024 * 1024 // (2 * len(LAYERS) * WIDTH * 4), 9)
        begin = time.perf_counter()
        loaded = [ort.LoraAdapter() for _ in range(100)]
        for adapter in loaded:
            adapter.Load(str(folder / "big.onnx_adapter"))
        loading = time.perf_counter() - begin
    print(f"{describe_machine()}; medians of {ROUNDS}")
    print(f"one adapter {ROWS / found['one']:.0f} rows/s, by row {ROWS / found['by row']:.0f}: ", end="")
    print(f"{found.ratio('one', 'by row'):.2f}")
    print(f"from cold, a process with one batch: {cold.ratio('one', 'none'):.2f} of the time without an adapter")
    print(f"loading 100 adapters of 1 MiB: {loading * 1000:.0f} ms")


if __name__ == "__main__":
    main()
