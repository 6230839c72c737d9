"""Rows per second of `ortdeploy apply` against the same loop by hand; memory over the number of rows.

Both read the same .npy through a memory map, run the same MLP in the same batches on one thread, and write the same
.npz. The hand-written loop is timed from opening the input to closing the output; ortdeploy's figure is the job's own
time in _run.json, from taking up the job to its last commit, with every fsync.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import describe_machine, ortdeploy
from onnx import TensorProto, helper, numpy_helper, save

BATCH, ROUNDS = 256, 7
SIZES = (100_000, 1_000_000)
WIDTH, HIDDEN, CLASSES = 32, 256, 8
MANIFEST = """\
version: 1
models:
  mlp: {{path: mlp.onnx, session: {{intra_op_num_threads: 1}}}}
jobs:
  run:
    model: mlp
    input: {{path: rows-{rows}.npy}}
    batch: {{size: {batch}}}
    output: {{path: out, format: npz}}
"""
BY_HAND = """\
import json, sys, time
import numpy as np, onnxruntime
def peak():
    return int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) * 1024
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession("mlp.onnx", options, providers=["CPUExecutionProvider"])
begin = time.perf_counter()
rows = np.load(sys.argv[1], mmap_mode="r")
outputs = []
for start in range(0, len(rows), {batch}):
    outputs.append(session.run(["y"], {{"x": rows[start : start + {batch}]}})[0])
np.savez("by-hand.npz", y=np.concatenate(outputs))
print(json.dumps([time.perf_counter() - begin, peak()]))
"""


def save_mlp(path: Path, width: int = WIDTH, hidden: int = HIDDEN) -> None:
    """Make a multilayer perceptron of three layers, 32-256-256-8 if nothing else is said, with random weights."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.normal(size=(width, hidden)),
        "b1": random.normal(size=hidden),
        "w2": random.normal(size=(hidden, hidden)) / hidden,
        "b2": random.normal(size=hidden),
        "w3": random.normal(size=(hidden, CLASSES)),
        "b3": random.normal(size=CLASSES),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["h2"]),
        helper.make_node("Relu", ["h2"], ["r2"]),
        helper.make_node("Gemm", ["r2", "w3", "b3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def by_hand(folder: Path, rows: int) -> tuple[float, int]:
    """Return seconds and peak memory of the loop."""
    command = [sys.executable, "-c", BY_HAND.format(batch=BATCH), f"rows-{rows}.npy"]
    found = json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)
    return found[0], found[1]


def by_ortdeploy(folder: Path, rows: int) -> tuple[float, int]:
    """Return seconds and peak memory of the job."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "m.yaml").write_text(MANIFEST.format(rows=rows, batch=BATCH))
    subprocess.run(ortdeploy("apply", "-q", "m.yaml"), cwd=folder, check=True, capture_output=True)
    report = json.loads((folder / "out/_run.json").read_text())
    return report["seconds"], report["peak_memory_bytes"]


def main() -> None:
    """Measure both in turn and print their ratio."""
    print(f"{describe_machine()}; medians of {ROUNDS}, batches of {BATCH}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_mlp(folder / "mlp.onnx")
        peaks = []
        for rows in SIZES:
            np.save(folder / f"rows-{rows}.npy", np.random.default_rng(1).normal(size=(rows, WIDTH)).astype(np.float32))
            pairs = [(by_hand(folder, rows), by_ortdeploy(folder, rows)) for _ in range(ROUNDS)]
            ratio = statistics.median(hand[0] / ours[0] for hand, ours in pairs)
            hand, ours = (statistics.median(pair[index][0] for pair in pairs) for index in (0, 1))
            peak = statistics.median(pair[1][1] for pair in pairs)
            peaks.append(peak)
            print(
                f"{rows:>9,} rows: by hand {rows / hand:>9,.0f} rows/s, ortdeploy {rows / ours:>9,.0f} rows/s: "
                f"{ratio:.2f}; peak memory {peak / 2**20:.0f} MiB (by hand {pairs[-1][0][1] / 2**20:.0f})"
            )
    print(f"peak memory at {SIZES[1]:,} rows over {SIZES[0]:,}: {peaks[1] / peaks[0]:.2f}")


if __name__ == "__main__":
    main()
